"""gpt-oss: a message to a function in the channel `commentary`, which ends the reply."""

from mrs.text.harmony import CALL_ARGUMENTS, CALL_NAME
from mrs.tools.call_format import CallFormat
from mrs.tools.json_arguments import JsonArguments

FORMAT = CallFormat(
    "harmony",
    lambda template: "<|channel|>" in template and "functions." in template,
    JsonArguments(),
    before="<|channel|>commentary to=functions.",
    between=" <|constrain|>json<|message|>",
    is_parallel=False,
    read_before=CALL_NAME,
    read_between=CALL_ARGUMENTS,
)
