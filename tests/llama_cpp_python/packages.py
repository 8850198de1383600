"""Packages that make a llama_cpp.Llama themselves, or ask a server that does, each with a small program: MODEL and URL stand for what it is given."""

from typing import NamedTuple


class Package(NamedTuple):
    """needs: what pip installs beside edgekv. module: what is there then. server: options of the server that is asked, None: the program needs none."""

    needs: str
    module: str
    program: str
    server: str | None = None


PACKAGES = {
    "llama_cpp.server": Package("llama-cpp-python[server]", "starlette_context", """
import openai
client = openai.OpenAI(base_url="URL/v1", api_key="none")
asked = [{"role": "user", "content": "What is the opposite of hot?"}]
print(client.chat.completions.create(model="any", messages=asked, max_tokens=12, temperature=0).choices[0].message.content)
""", ""),
    "langchain-community": Package("langchain-community", "langchain_community", """
from langchain_community.chat_models import ChatLlamaCpp
print(ChatLlamaCpp(model_path="MODEL", n_ctx=1024, max_tokens=12, temperature=0).invoke("What is the opposite of hot?").content)
"""),
    "llama-index-llms-llama-cpp": Package("llama-index-llms-llama-cpp", "llama_index.llms.llama_cpp", """
from llama_index.llms.llama_cpp import LlamaCPP
print(LlamaCPP(model_path="MODEL", context_window=1024, max_new_tokens=12, temperature=0.0).complete("The opposite of hot is").text)
"""),
    "llama-cpp-haystack": Package("llama-cpp-haystack", "haystack_integrations.components.generators.llama_cpp", """
from haystack.dataclasses import ChatMessage
from haystack_integrations.components.generators.llama_cpp import LlamaCppChatGenerator
generator = LlamaCppChatGenerator(model="MODEL", n_ctx=1024, generation_kwargs={"max_tokens": 12, "temperature": 0})
generator.warm_up()
print(generator.run([ChatMessage.from_user("What is the opposite of hot?")])["replies"][0].text)
"""),
    "guidance": Package("guidance", "guidance", """
from guidance import gen, models
print((models.LlamaCpp("MODEL", n_ctx=1024, echo=False) + "The opposite of hot is" + gen(max_tokens=8, name="answer"))["answer"])
"""),
    "outlines": Package("outlines[llamacpp]", "outlines", """
from typing import Literal
import llama_cpp, outlines
model = outlines.from_llamacpp(llama_cpp.Llama("MODEL", n_ctx=1024))
print(model("Is ice hot or cold?", Literal["hot", "cold"], max_tokens=8, backend="llguidance"))
"""),
    "instructor": Package("instructor", "instructor", """
import instructor, llama_cpp, pydantic
class Answer(pydantic.BaseModel):
    opposite: str
create = instructor.patch(create=llama_cpp.Llama("MODEL", n_ctx=2048).create_chat_completion_openai_v1)
asked = [{"role": "user", "content": "What is the opposite of hot?"}]
print(create(messages=asked, response_model=Answer, max_tokens=200, temperature=0).opposite)
"""),
    "llm-gguf": Package("llm-gguf", "llm_gguf", """
import json, os, pathlib, sys, tempfile
os.environ["LLM_USER_PATH"] = tempfile.mkdtemp()
folder = pathlib.Path(os.environ["LLM_USER_PATH"], "gguf")
folder.mkdir()
(folder / "models.json").write_text(json.dumps({"smol": {"path": "MODEL", "n_ctx": 1024}}))
sys.argv = ["llm", "-m", "gguf/smol", "What is the opposite of hot?"]
import runpy
runpy.run_module("llm", run_name="__main__", alter_sys=True)
"""),
    "pydantic-ai": Package("pydantic-ai-slim[openai] llama-cpp-python[server]", "pydantic_ai", """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
model = OpenAIChatModel("any", provider=OpenAIProvider(base_url="URL/v1", api_key="none"))
print(Agent(model, model_settings={"max_tokens": 12, "temperature": 0}).run_sync("What is the opposite of hot?").output)
""", ""),
    "lm-eval": Package("lm-eval llama-cpp-python[server]", "lm_eval", """
import json, pathlib
import lm_eval
from lm_eval.tasks import TaskManager
pathlib.Path("questions.jsonl").write_text(json.dumps({"q": "The opposite of hot is", "a": " cold"}))
pathlib.Path("tiny.yaml").write_text('''
task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{q}}"
doc_to_target: "{{a}}"
metric_list: [{metric: acc}]
''')
tasks = TaskManager(include_path=".", include_defaults=False)
found = lm_eval.simple_evaluate("gguf", model_args="base_url=URL", tasks=["tiny"], task_manager=tasks)
print(found["results"]["tiny"]["acc,none"])
""", "--logits_all true"),
}
