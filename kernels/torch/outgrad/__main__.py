"""python -m outgrad report MODEL: what patching a model would save."""

import argparse
import importlib.util
from collections.abc import Sequence

from . import report, stores, version


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no positive whole number")
    return int(text)


def _stores(text: str) -> str | dict[str, str]:
    """A store, or stores by activation, as outgrad.patch takes them."""
    if "=" not in text:
        return text
    for one in text.split(","):
        if "=" not in one:
            raise ValueError(
                f"--store: {one!r} is neither one store for all activations nor ACTIVATION=STORE")
    return dict(one.split("=", 1) for one in text.split(","))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m outgrad")
    parser.add_argument("--version", action="version", version=version())
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("report",
        help="what patching a model would save, counted on fake tensors of a GPU that need not exist")
    command.add_argument("model",
        help="a kind of model of transformers (bert), a file or folder with a configuration, or "
            "MODULE:FUNCTION giving (model, example)")
    command.add_argument("--batch", type=_positive, default=1, help="sequences or images (default: 1)")
    command.add_argument("--length", type=_positive, default=512, help="of a sequence (default: 512)")
    command.add_argument("--type", choices=report.TYPES, default="bf16",
        help="of parameters and inputs; autocast: fp32 with bf16 products (default: bf16)")
    command.add_argument("--norms", choices=("fp32", "autocast"), default="fp32",
        help="the norms' type under autocast (default: fp32)")
    command.add_argument("--store", default=stores.DEFAULT,
        help="what layers keep: code:4 for all activations, gelu=e4m3+bit,linear=e4m3, or auto "
            "(default: %(default)s)")
    command.add_argument("--error", type=float,
        help="what --store auto may choose at most: |g - f'(x)| of an activation (default: that of y+bit)")
    command.add_argument("--evaluation", action="store_true", help="the model in evaluation mode")
    command.add_argument("--modules", action="store_true", help="a row for each module too, with its bound")
    command.add_argument("--plot", metavar="FILE",
        help="also draw the bytes by component (needs matplotlib: pip install outgrad[plot])")
    options = parser.parse_args(arguments)
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.exit(3, f"{parser.prog}: --plot: matplotlib is not installed; the extra plot has it: "
            "pip install 'outgrad[plot]'\n")
    try:
        found = report.of(options.model, options.batch, options.length, options.type, not options.evaluation,
            norms=options.norms, store=_stores(options.store), error=options.error)
        if options.plot:
            report.plot(found, options.plot, options.model)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    text = str(found).splitlines()
    modules = {*range(1, 2 + len(found.swapped))} if found.swapped and not options.modules else set()
    print("\n".join(line for k, line in enumerate(text) if k not in modules))
    print(report.bars(found))


if __name__ == "__main__":
    main()
