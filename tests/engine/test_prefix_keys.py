from __future__ import annotations

from inference.engine.cache.prefix_keys import PrefixKeys, Programs

TOKENS = list(range(12))


def keys(tokens=TOKENS, *, num_prompt: int = 12, prompt: str = "", generation: str = "", count: int = 3):
    return PrefixKeys(4, Programs(prompt, generation), num_prompt).upto(tokens, count)


def test_equal_beginnings_have_equal_keys_up_to_the_first_difference():
    other = [*TOKENS[:6], 99, *TOKENS[7:]]
    assert keys()[0] == keys(other)[0]
    assert keys()[1] != keys(other)[1]
    assert keys()[2] != keys(other)[2], "a key stands for all tokens before it"


def test_keys_are_all_different():
    assert len(set(keys([7] * 12))) == 3


def test_steering_of_the_prompt_forks_its_keys_and_steering_of_generated_tokens_does_not():
    assert keys(prompt="joyful")[0] != keys()[0]
    assert keys(prompt="joyful") != keys(prompt="gloomy")
    assert keys(generation="joyful") == keys()


def test_generated_tokens_have_the_keys_of_what_steered_them():
    steered = keys(num_prompt=4, generation="joyful")
    assert steered[0] == keys()[0]
    assert steered[1] != keys()[1]
    assert keys(num_prompt=4) == keys(), "unsteered answers are prompts of the next turn"
    assert keys(num_prompt=4, prompt="p", generation="p") == keys(prompt="p", generation="p")


def test_a_block_that_two_programs_steered_has_no_key_nor_has_what_follows():
    assert keys(num_prompt=6, generation="joyful")[1:] == [None, None]


def test_keys_follow_a_growing_sequence():
    growing, grown = PrefixKeys(4, Programs(), 4), list(TOKENS[:4])
    assert growing.upto(grown, 1) == keys(count=1)
    grown.extend(TOKENS[4:])
    assert growing.upto(grown, 3) == keys()


def test_keys_are_the_same_in_every_process():
    assert keys(prompt="p", count=1)[0].hex() == "d52ba0db9797ed669e4ad0a928b5fd56"


def test_a_salt_changes_all_keys_and_is_no_text():
    def salted(salt: str) -> list[bytes | None]:
        return PrefixKeys(4, Programs(), 12, salt).upto(TOKENS, 3)

    assert len({key for salt in ("", "ann", "bob") for key in salted(salt)}) == 9
    assert salted("ann") == salted("ann")
