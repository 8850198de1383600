"""Conversations as clients send them, each text a word that stands nowhere else."""

from dataclasses import dataclass, field
from typing import Any

TOOLS = [{"type": "function", "function": {"name": name, "description": "Tells something.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}} for name in ("get_weather", "get_time")]


@dataclass(frozen=True)
class Shape:
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    more: tuple[str, ...] = ()
    """Texts within calls."""

    @property
    def texts(self) -> list[str]:
        """What the prompt must hold."""
        contents = [message["content"] for message in self.messages if message.get("content")]
        return [text for content in contents for text in ([content] if isinstance(content, str) else [part["text"] for part in content])] + [*self.more]


def system(text: str = "Sysone rules.", role: str = "system") -> dict:
    return {"role": role, "content": text}


def user(text: str = "Userone asks.") -> dict:
    return {"role": "user", "content": text}


def assistant(text: str = "Assone says.", **more: Any) -> dict:
    return {"role": "assistant", "content": text, **more}


def call(arguments: Any = '{"city": "Callonecity"}', name: str = "get_weather", number: int = 1) -> dict:
    return {"id": f"call_00000000000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: Any = "Resone is sunny.", number: int = 1) -> dict:
    return {"role": "tool", "tool_call_id": f"call_00000000000{number}", "content": content}


def parts(*texts: str) -> list[dict]:
    return [{"type": "text", "text": text} for text in texts]


def turn(*calls: dict, text: str = "", results: tuple[dict, ...] = (), **more: Any) -> list[dict]:
    """A user asks, the assistant calls, and the results come."""
    return [user(), assistant(text, tool_calls=[*calls], **more), *(results or (result(),))]


SHAPES = {
    "plain": Shape([user(), assistant(), user("Usertwo asks.")]),
    "system first": Shape([system(), user(), assistant(), user("Usertwo asks.")]),
    "system in the middle": Shape([user(), assistant(), system(), user("Usertwo asks.")]),
    "system twice": Shape([system(), system("Systwo rules."), user()]),
    "system last": Shape([system(), user(), system("Systwo rules.")]),
    "developer": Shape([system("Devone rules.", "developer"), user(), system("Devtwo rules.", "developer")]),
    "two users": Shape([user(), user("Usertwo asks.")]),
    "two assistants": Shape([user(), assistant(), assistant("Asstwo says."), user("Usertwo asks.")]),
    "assistant first": Shape([assistant(), user()]),
    "assistant last": Shape([user(), assistant()]),
    "tool turn": Shape([*turn(call()), assistant("Asstwo says."), user("Usertwo asks.")], TOOLS, ("Callonecity",)),
    "tool result last": Shape(turn(call()), TOOLS, ("Callonecity",)),
    "tool result alone": Shape([user(), result()], TOOLS),
    "tool result as parts": Shape(turn(call(), results=(result(parts("Resone is sunny.", "Restwo is warm.")),)), TOOLS, ("Callonecity",)),
    "two calls": Shape(turn(call(), call('{"city": "Calltwocity"}', "get_time", 2), results=(result(), result("Restwo is noon.", 2))), TOOLS,
                       ("Callonecity", "Calltwocity")),
    "arguments as object": Shape(turn(call({"city": "Callonecity"})), TOOLS, ("Callonecity",)),
    "arguments empty": Shape(turn(call("")), TOOLS),
    "arguments cut": Shape(turn(call('{"city": "Callonec')), TOOLS, ("Callonec",)),
    "arguments a list": Shape(turn(call('["Callonecity"]')), TOOLS, ("Callonecity",)),
    "call with text": Shape(turn(call(), text="Assone calls.", reasoning_content="Thinkone thinks."), TOOLS, ("Callonecity",)),
    "thinking kept": Shape([user(), assistant(reasoning_content="Thinkone thinks."), user("Usertwo asks.")]),
    "content as parts": Shape([{**system(), "content": parts("Sysone rules.", "Systwo rules.")}, {**user(), "content": parts("Userone asks.", "Usertwo asks.")},
                               {**assistant(), "content": parts("Assone says.", "Asstwo says.")}, user("Userthree asks.")]),
}
