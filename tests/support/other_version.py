"""A folder for the front of sys.path, with a llama-cpp-python of another version than EdgeKV is built for."""

from pathlib import Path


def other_version(folder: Path) -> Path:
    for name, text in (("llama_cpp/__init__.py", "raise AssertionError('it is never imported')"),
                       ("llama_cpp_python-0.3.35.dist-info/METADATA", "Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 0.3.35\n")):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    return folder
