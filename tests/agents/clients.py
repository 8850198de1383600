"""How the published clients are told to ask another server than their own once, as their users would."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

QUESTION = "Say hello."
ANOTHER = "Greet us all."  # in the second conversation
MODEL = "stub"
CODEX = f"""model = "{MODEL}"
model_provider = "edgekv"
[model_providers.edgekv]
name = "EdgeKV"
base_url = "<URL>/v1"
wire_api = "responses"
"""
OPENCODE = f"""{{"provider": {{"edgekv": {{"npm": "@ai-sdk/openai-compatible", "name": "EdgeKV", "options": {{"baseURL": "<URL>/v1"}},
"models": {{"{MODEL}": {{"name": "{MODEL}"}}}}}}}}}}"""
LLM = f"- model_id: {MODEL}\n  model_name: {MODEL}\n  api_base: <URL>/v1\n"
AGENTS = f"""from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
set_tracing_disabled(True)

@function_tool
def news(city: str) -> str:
    "Tells news."
    return "The zebra crosses at noon."

model = OpenAIChatCompletionsModel("{MODEL}", AsyncOpenAI())
print(Runner.run_sync(Agent("Helper", instructions="You help.", tools=[news], model=model), "{QUESTION}").final_output)
"""
OPENAI = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": "<URL>/v1", "OPENAI_API_BASE": "<URL>/v1", "OPENAI_MODEL": MODEL}


@dataclass(frozen=True)
class Client:
    """<URL> stands for the server's address."""

    command: tuple[str, ...]
    """Its program first, within the folder of the clients."""
    variables: Mapping[str, str] = field(default_factory=lambda: OPENAI)
    files: Mapping[str, str] = field(default_factory=dict)
    """Of the user's home. The client runs in its folder `project`, beside note.txt."""
    call: str = ""
    """Of its tool that reads note.txt. <HOME> stands for the user's home."""


CLIENTS = {
    "claude": Client(("node_modules/.bin/claude", "-p", QUESTION),
                     {"ANTHROPIC_BASE_URL": "<URL>", "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": MODEL, "ANTHROPIC_SMALL_FAST_MODEL": MODEL},
                     call='{"name": "Read", "arguments": {"file_path": "<HOME>/project/note.txt"}}'),
    "codex": Client(("node_modules/.bin/codex", "exec", "--skip-git-repo-check", QUESTION), files={".codex/config.toml": CODEX},
                    call='{"name": "exec_command", "arguments": {"cmd": "cat note.txt"}}'),
    "opencode": Client(("node_modules/.bin/opencode", "run", "-m", f"edgekv/{MODEL}", QUESTION), files={"project/opencode.json": OPENCODE},
                       call='{"name": "read", "arguments": {"filePath": "<HOME>/project/note.txt"}}'),
    "qwen": Client(("node_modules/.bin/qwen", "--auth-type", "openai", "-p", QUESTION),
                   call='{"name": "read_file", "arguments": {"file_path": "<HOME>/project/note.txt"}}'),
    "aider": Client(("aider/bin/aider", "--model", f"openai/{MODEL}", "--no-git", "--yes-always", "--no-check-update", "--analytics-disable",
                     "--no-show-model-warnings", "--message", QUESTION)),
    "openai-agents": Client(("openai-agents/bin/python", "-c", AGENTS), call='{"name": "news", "arguments": {"city": "Ur"}}'),
    "llm": Client(("llm/bin/llm", "-m", MODEL, QUESTION), files={".config/io.datasette.llm/extra-openai-models.yaml": LLM}),
}


def laid_out(client: Client, url: str, folder: Path, home: Path) -> tuple[list[str], dict[str, str]]:
    """Writes the client's files to `home`. Its command line and whole environment."""
    for name, text in client.files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text.replace("<URL>", url))
    return [str(folder / client.command[0]), *client.command[1:]], {name: value.replace("<URL>", url) for name, value in client.variables.items()}
