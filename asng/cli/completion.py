"""`asng --print-completion SHELL`: a script that lets a shell complete commands, flags and their values."""

import shlex
from collections.abc import Mapping, Sequence

from asng._checks import did_you_mean
from asng.cli.flags import Flag

GENERAL = ("--help", "--version", "--print-completion")  # flags of asng itself


Commands = Mapping[str, Sequence[Flag]]  # by the words of a command, its flags


def print_completion(shell: str, commands: Commands) -> None:
    """Print the script of a shell; ValueError for a shell that there is none for."""
    if shell not in SHELLS:
        near = did_you_mean(shell, SHELLS)
        raise ValueError(f"there is no completion for {shell!r}, but for {', '.join(SHELLS)}{near}")
    print(SHELLS[shell](commands), end="")


def _next_words(commands: Commands) -> dict[str, list[str]]:
    """The words that may follow asng, and those that may follow an experiment."""
    after = {"": list(dict.fromkeys(command.split()[0] for command in commands))}
    for name, verb in (command.split() for command in commands if " " in command):
        after.setdefault(name, []).append(verb)
    return after


def bash_script(commands: Commands) -> str:
    """For bash: what is completed depends on the words before; where nothing fits, files are.

    Where a run may stand, flags are offered from their first letter on. `last` is the last flag with its values.
    """
    cases = []
    for command, flags in commands.items():
        named = [flag for flag in flags if flag.metavar is None]
        words = " ".join(["--help", *(flag.usage.split()[0] for flag in named)])
        run = "; [[ $current == -* ]] || words=" if len(named) < len(flags) else ""
        values = [f"'{flag.option} ') words='{' '.join(flag.choices)}';;" for flag in named if flag.kind is not bool]
        values += [
            f"'{flag.option} '*) words+=' {' '.join(flag.choices)}';;" for flag in named if flag.many and flag.choices
        ]
        inner = f'; case "$last" in {" ".join(values)} esac' if values else ""
        cases.append(f"        '{command} '*) words='{words}'{run}{inner};;")
    for before, after in _next_words(commands).items():
        more = " ".join([*after, *(GENERAL if not before else ("--help",))])
        cases.append(f"        '{before} ') words='{more}';;")
    lines = "\n".join(cases)
    return f"""_asng() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} word last= words=
    for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
        [[ $word == -* ]] && last=
        last+="$word "
    done
    case "${{COMP_WORDS[*]:1:$((COMP_CWORD-1))}} " in
{lines}
        '--print-completion ') words='{" ".join(SHELLS)}';;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _asng asng
"""


def zsh_script(commands: Commands) -> str:
    """For zsh, which understands that of bash."""
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{bash_script(commands)}"


def fish_script(commands: Commands) -> str:
    """For fish, which also shows what flags mean."""
    lines = [
        'function __asng_before; set -l words (commandline -opc); test "$words[2..]" = "$argv"; end',
        'function __asng_in; set -l words (commandline -opc); string match -q -- "$argv *" "$words[2..] "; end',
        'function __asng_more; set -l w (commandline -opc); string match -qr -- " $argv( [^-]\\S*)+\\$" "$w"; end',
        "complete -c asng -l help -d 'Print help.'",
        "complete -c asng -n __asng_before -l version -d 'Print the version.'",
        "complete -c asng -n __asng_before -l print-completion -d 'Print the script of a shell.'",
        f"complete -c asng -f -n '__asng_before --print-completion' -a '{' '.join(SHELLS)}'",
    ]
    for before, words in _next_words(commands).items():
        condition = shlex.quote(f"__asng_before {before}".strip())
        lines.append(f"complete -c asng -f -n {condition} -a {shlex.quote(' '.join(words))}")
    for command, flags in commands.items():
        condition = shlex.quote(f"__asng_in {command}")
        for flag in (flag for flag in flags if flag.metavar is None):
            value = "" if flag.kind is bool else " -r"
            if flag.choices:
                value = f" -xa {shlex.quote(' '.join(flag.choices))}"
            name = flag.usage.split()[0].removeprefix("--")
            lines.append(f"complete -c asng -n {condition} -l {name}{value} -d {shlex.quote(flag.text)}")
            if flag.many and flag.choices:
                more = shlex.quote(f"__asng_more --{name}")
                lines.append(f"complete -c asng -f -n {more} -a {shlex.quote(' '.join(flag.choices))}")
    return "\n".join(lines) + "\n"


SHELLS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
