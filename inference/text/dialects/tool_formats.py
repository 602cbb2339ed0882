"""The supported tool call notations, and how to find that of a chat template."""

from __future__ import annotations

from inference.text.dialects import deepseek, harmony, hermes, mistral, tagged_call
from inference.text.dialects import gemma as gemma_call
from inference.text.dialects import gemma as gemma_code
from inference.text.dialects import llama as llama_json
from inference.text.dialects import llama as pythonic
from inference.text.dialects.tool_format import CallShape, CallSpan, ToolFormat

OTHER_MARKUP = "<function="  # other calls between the same marks as Hermes'

HERMES = ToolFormat(
    "hermes",
    hermes.parse_hermes,
    CallShape(
        mark=hermes.START,
        before=f'{hermes.START}\n{{"name": "',
        between='", "arguments": ',
        after=f"}}\n{hermes.END}",
        separator="\n",
    ),
    (hermes.START, hermes.END),
    ((hermes.START,),),
    CallSpan((hermes.START,), (hermes.END,)),
)
LLAMA_JSON = ToolFormat(
    "llama3_json",
    llama_json.parse_llama_json,
    CallShape(before='{"name": "', between='", "parameters": ', after="}", separator="; "),
    (llama_json.PYTHON_TAG,),
    ((llama_json.PYTHON_TAG,), ("Environment: ipython",), ('"parameters": ', "<|start_header_id|>")),
    CallSpan(openers=(llama_json.PYTHON_TAG, "{")),
)
PYTHONIC = ToolFormat(
    "pythonic",
    pythonic.parse_pythonic,
    CallShape(opening="[", before="", between="(", after=")", separator=", ", closing="]", arguments="python"),
    (pythonic.PYTHON_START, pythonic.PYTHON_END),
    ((pythonic.PYTHON_START,), ("[func_name1(params_name1=",)),
    CallSpan(ends=(pythonic.PYTHON_END,), openers=(pythonic.PYTHON_START, "[")),
)
MISTRAL = ToolFormat(
    "mistral",
    mistral.parse_mistral,
    CallShape(
        mark=mistral.MARK,
        opening=f"{mistral.MARK}[",
        before='{"name": "',
        between='", "arguments": ',
        after="}",
        separator=", ",
        closing="]",
    ),
    (mistral.MARK,),
    ((mistral.MARK,),),
    CallSpan((mistral.MARK,)),
    ids="short",
)
MISTRAL_ARGS = ToolFormat(
    "mistral_args",
    mistral.parse_mistral,
    CallShape(mark=mistral.MARK, before=mistral.MARK, between=mistral.ARGS, after=""),
    (mistral.MARK, mistral.ARGS, mistral.CALL_ID),
    ((mistral.MARK, mistral.ARGS),),
    CallSpan((mistral.MARK,)),
    ids="short",
)
DEEPSEEK = ToolFormat(
    "deepseek_v3",
    deepseek.parse_deepseek,
    CallShape(
        mark=deepseek.CALLS_BEGIN,
        opening=deepseek.CALLS_BEGIN,
        before=f"{deepseek.CALL_BEGIN}{deepseek.KIND}{deepseek.SEPARATOR}",
        between=f"\n{deepseek.FENCE}\n",
        after=f"\n```{deepseek.CALL_END}",
        separator="\n",
        closing=deepseek.CALLS_END,
    ),
    (deepseek.CALLS_BEGIN, deepseek.CALLS_END, deepseek.CALL_BEGIN, deepseek.CALL_END, deepseek.SEPARATOR),
    ((deepseek.CALLS_BEGIN, deepseek.FENCE),),
    CallSpan((deepseek.CALLS_BEGIN, deepseek.CALL_BEGIN), (deepseek.CALLS_END,)),
)
DEEPSEEK_31 = ToolFormat(
    "deepseek_v31",
    deepseek.parse_deepseek,
    CallShape(
        mark=deepseek.CALLS_BEGIN,
        opening=deepseek.CALLS_BEGIN,
        before=deepseek.CALL_BEGIN,
        between=deepseek.SEPARATOR,
        after=deepseek.CALL_END,
        closing=deepseek.CALLS_END,
    ),
    DEEPSEEK.marks,
    ((deepseek.CALLS_BEGIN,),),
    DEEPSEEK.span,
)
GEMMA_CODE = ToolFormat(
    "gemma_tool_code",
    gemma_code.parse_gemma_code,
    CallShape(
        mark=gemma_code.FENCE,
        opening=f"{gemma_code.FENCE}\n",
        before="",
        between="(",
        after=")\n",
        closing=gemma_code.END,
        arguments="python",
    ),
    (),
    (("tool_code",),),
    CallSpan((gemma_code.FENCE,), (gemma_code.END,)),
)


def _gemma(name: str, marks: gemma_call.GemmaMarks) -> ToolFormat:
    return ToolFormat(
        name,
        gemma_call.parser_for(marks),
        CallShape(
            mark=marks.start,
            before=f"{marks.start}{gemma_call.PREFIX}",
            between="",
            after=marks.end,
            arguments="gemma",
            quote=marks.quote,
        ),
        (marks.start, marks.end, marks.quote),
        ((marks.start,),),
        CallSpan((marks.start,), (marks.end,)),
    )


FUNCTION_GEMMA = _gemma("function_gemma", gemma_call.FUNCTION_GEMMA)
GEMMA_4 = _gemma("gemma4", gemma_call.GEMMA_4)

QWEN_CODER = ToolFormat(
    "qwen3_coder",
    tagged_call.parser_for(tagged_call.QWEN_CODER),
    CallShape(
        mark=tagged_call.QWEN_CODER.start,
        before=f"{tagged_call.QWEN_CODER.start}\n{tagged_call.QWEN_CODER.function}",
        between=f"{tagged_call.QWEN_CODER.name_end}\n",
        after=f"{tagged_call.QWEN_CODER.function_end}\n{tagged_call.QWEN_CODER.end}",
        separator="\n",
        arguments="tagged",
        tags=tagged_call.QWEN_CODER,
    ),
    (tagged_call.QWEN_CODER.start, tagged_call.QWEN_CODER.end),
    ((tagged_call.QWEN_CODER.function, tagged_call.QWEN_CODER.key),),
    CallSpan((tagged_call.QWEN_CODER.start,), (tagged_call.QWEN_CODER.end,)),
)


def _glm(name: str, tags: tagged_call.Tags, *signs: str) -> ToolFormat:
    return ToolFormat(
        name,
        tagged_call.parser_for(tags),
        CallShape(
            mark=tags.start,
            before=tags.start,
            between=tags.gap,
            after=tags.end,
            separator=tags.gap,
            arguments="tagged",
            tags=tags,
        ),
        (tags.start, tags.end, tags.key, tags.key_end, tags.value, tags.value_end),
        (signs,),
        CallSpan((tags.start,), (tags.end,)),
    )


GLM_47 = _glm("glm47", tagged_call.GLM_47, tagged_call.GLM.start, f"}}{tagged_call.GLM.key}")
GLM_45 = _glm("glm45", tagged_call.GLM, tagged_call.GLM.start, tagged_call.GLM.key)
HARMONY = ToolFormat(
    "harmony",
    harmony.parse_harmony,
    CallShape(
        mark=f"{harmony.CHANNEL}commentary to={harmony.FUNCTIONS}",
        before=f"{harmony.CHANNEL}commentary to={harmony.FUNCTIONS}",
        between=f" {harmony.CONSTRAIN}json{harmony.MESSAGE}",
        after="",
        content_opening=f"{harmony.CHANNEL}final{harmony.MESSAGE}",
        ends_answer=True,
    ),
    (harmony.START, harmony.CHANNEL, harmony.MESSAGE, harmony.CONSTRAIN, harmony.END),
    ((f"{harmony.CHANNEL}commentary", harmony.CALL),),
    CallSpan(
        (f"{harmony.CHANNEL}commentary {harmony.RECIPIENT}", f"{harmony.ASSISTANT} {harmony.RECIPIENT}"),
        (harmony.END, harmony.CALL),
        (harmony.RECIPIENT,),
    ),
)

# Formats with more signs precede those with a subset of the same signs.
_ALL = (
    HARMONY,
    QWEN_CODER,
    GLM_47,
    GLM_45,
    DEEPSEEK,
    DEEPSEEK_31,
    MISTRAL_ARGS,
    MISTRAL,
    GEMMA_4,
    FUNCTION_GEMMA,
    HERMES,
    PYTHONIC,
    LLAMA_JSON,
    GEMMA_CODE,
)
TOOL_FORMATS = {each.name: each for each in _ALL}


def format_in(template: str) -> ToolFormat | None:
    """Return the format of a template; None if it has no tools or uses an unknown notation."""
    found = next((each for each in _ALL if each.is_taught_by(template)), None)
    return None if found is HERMES and OTHER_MARKUP in template else found
