"""`edgekv completion`: the scripts with which shells complete command lines, and the answers to them."""

import os

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from edgekv.cli.common.choices import GGUF
from edgekv.cli.common.examples import examples
from edgekv.common.errors import EdgeKVError

VARIABLE = "_EDGEKV_COMPLETE"
"""The variable, named by click's rule, with which a shell calls the program at a TAB; main() then answers instead of the command."""

_PLAIN = "plain"


class _Whole(ShellComplete):
    """Answers with whole words, `--kv=sparse` too. click's own scripts lose the part before the equals sign, put a space behind a folder, and
    cannot filter files by ending. So each shell has a script of ours, in which the shell finds files."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        if "--" in args:  # the options after it are another program's
            return [CompletionItem(incomplete, type="file")]
        name, equals, _ = incomplete.partition("=")
        before = name + equals if equals and name.startswith("-") else ""
        try:
            found = super().get_completions(args, incomplete)
        except EdgeKVError:  # the command itself will report it
            return []
        return [CompletionItem(before + item.value, help=item.help) if item.type == _PLAIN else item for item in found]


class Bash(_Whole, BashComplete):
    """Bash also breaks words at = and : and replaces only the last part; its script passes the line and the characters it breaks at."""

    source_template = f"""\
%(complete_func)s() {{
    local line type value
    COMPREPLY=()
    while IFS= read -r line; do
        type=${{line%%%%,*}} value=${{line#*,}}
        case $type in
            plain) COMPREPLY+=("$value") ;;
            file) compopt -o filenames; while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$value") ;;
            dir) compopt -o filenames; while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -d -- "$value") ;;
            {GGUF}) compopt -o filenames; while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
                compgen -d -- "$value"; compgen -f -X '!*.[gG][gG][uU][fF]' -- "$value") ;;
        esac
    done < <(COMP_WORDS="${{COMP_LINE:0:COMP_POINT}}" COMP_CWORD= COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
}}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        if os.environ.get("COMP_CWORD"):
            return super().get_completion_args()
        words = split_arg_string(f"{os.environ['COMP_WORDS']}|")  # the mark shows whether the last word has begun
        return words[1:-1], words[-1][:-1]

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        breaks = os.environ.get("COMP_WORDBREAKS", "")
        kept = max((incomplete.rfind(sign) for sign in "=:" if sign in breaks), default=-1) + 1
        return [CompletionItem(item.value[kept:], help=item.help) if item.type == _PLAIN else item
                for item in super().get_completions(args, incomplete)]


class Zsh(_Whole, ZshComplete):
    source_template = f"""\
#compdef %(prog_name)s

%(complete_func)s() {{
    local type value help
    local -a plain described response
    response=("${{(@f)$(COMP_WORDS="${{words[*]}}" COMP_CWORD=$((CURRENT-1)) %(complete_var)s=zsh_complete %(prog_name)s 2>/dev/null)}}")
    for type value help in "${{(@)response}}"; do
        case $type in
            plain) if [[ $help == _ ]]; then plain+=("$value"); else described+=("$value:$help"); fi ;;
            file|dir|{GGUF})
                [[ $PREFIX == -*=* ]] && compset -P '*='
                case $type in
                    file) _path_files ;;
                    dir) _path_files -/ ;;
                    {GGUF}) _path_files -/; _path_files -g '*.[gG][gG][uU][fF]' ;;
                esac ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described -U
    (( $#plain )) && compadd -U -V unsorted -a plain
}}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""


class Fish(_Whole, FishComplete):
    source_template = f"""\
function %(complete_func)s
    set -l token (commandline -ct)
    set -l before (string match -r -- '^-[^=]*=' $token; or echo '')  # one word in any case
    set -l typed (string replace -r -- '^-[^=]*=' '' $token)
    for line in (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) COMP_CWORD=$token %(prog_name)s 2>/dev/null)
        set -l item (string split -m 1 , -- $line)
        switch $item[1]
            case plain
                echo $item[2]
            case file
                string join \\n -- $before(complete -C "'' $typed")
            case dir
                string join \\n -- $before(complete -C "'' $typed" | string match -r '.*/(?:\\t.*)?$')
            case {GGUF}
                string join \\n -- $before(complete -C "'' $typed" | string match -r '.*(?:/|\\.[gG][gG][uU][fF])(?:\\t.*)?$')
        end
    end
end

complete --no-files --keep-order --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


def register() -> None:
    """Register these classes with click."""
    for name, shell in SHELLS.items():
        add_completion_class(shell, name)


@click.command(epilog=examples(
    'eval "$(edgekv completion bash)"',
    "edgekv completion fish > ~/.config/fish/completions/edgekv.fish",
))
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and values at TAB, for bash, zsh or fish.

    \b
    bash   in ~/.bashrc: eval "$(edgekv completion bash)"
    zsh    in ~/.zshrc, after compinit: eval "$(edgekv completion zsh)"
    fish   edgekv completion fish > ~/.config/fish/completions/edgekv.fish

    A new shell then has it. Names of policies, prefetchers, bench modes, shapes, models, kept chats and stored conversations are looked
    up at each TAB.
    """
    cli = click.get_current_context().find_root().command
    click.echo(SHELLS[shell](cli, {}, "edgekv", VARIABLE).source(), nl=False)
