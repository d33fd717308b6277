#!/usr/bin/python3
"""Turns trained weights into an entry of a model repository (docs/convert.md).

Needs Python 3.11 and NumPy. Nothing in a checkpoint is executed. An error is one line on stderr and exit code 2.
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from edgewise_tools import hugging_face, model_format, nanogpt, sbm_transformer, state_dict  # noqa: E402
from edgewise_tools.arrays import require_numpy  # noqa: E402
from edgewise_tools.errors import ConvertError  # noqa: E402

# A source format is a module with NAME, HELP, add_arguments(parser) and convert(args) -> (config, tensors),
# where config is our config.json and tensors maps our names to float32 arrays.
SOURCES = (sbm_transformer, nanogpt, state_dict)


class _Parser(argparse.ArgumentParser):
    """Prints the error alone, without the usage."""

    def error(self, message: str) -> None:
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="convert.py", description=__doc__.split("\n\n")[0], allow_abbrev=False)
    commands = parser.add_subparsers(dest="source", required=True, metavar="SOURCE")
    for source in SOURCES:
        command = commands.add_parser(source.NAME, help=source.HELP, description=source.HELP, allow_abbrev=False)
        source.add_arguments(command)
        command.add_argument("--output", required=True, metavar="DIR/name/version", help="the entry to write")
        command.add_argument("--overwrite", action="store_true", help="replace the model that is there")
        command.set_defaults(convert=source.convert)
    return parser


def _summary(config: dict, tensors: dict) -> str:
    attention = config["attention"]
    kinds = sorted({kind["kind"] for kind in (attention if isinstance(attention, list) else [attention])})
    unit = "rows" if "feature_size" in config else "tokens"
    return (
        f"{config['task']}, {config['num_hidden_layers']} layers, {config['num_attention_heads']} heads, "
        f"{' and '.join(kinds)} attention, up to {config['max_position_embeddings']} {unit}, "
        f"{sum(values.size for values in tensors.values())} weights"
    )


def main(arguments: list) -> int:
    args = _parser().parse_args(arguments)
    try:
        require_numpy()
        hugging_face.refuse(args)
        model_format.check_output(args.output, args.overwrite)
        config, tensors = args.convert(args)
        model_format.write_model(args.output, config, tensors)
    except ConvertError as error:
        print(f"convert.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"convert.py: {error.filename or args.output}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{args.output}: {_summary(config, tensors)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
