"""The figures of docs/gpu.md are those of the files of results that it names."""

import json
import re
import unittest

import words

DOCUMENT = "docs/gpu.md"
PEER = {"bf16": "sdpa_cudnn_bf16", "fp32": "sdpa_efficient_fp32"}


def rows_behind(title: str) -> list:
    """The cells of the table whose head begins with `title`."""
    table = re.search(rf"^\| {re.escape(title)}.*\n\|[-:|]+\|\n((?:\|.*\n)+)", words.read(DOCUMENT), re.MULTILINE)[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def results(benchmark: str) -> str:
    named, = set(re.findall(rf"bench/results/\S+-{benchmark}\.json", words.read(DOCUMENT)))
    return words.read(named)


def number(text: str) -> float:
    return float(text.replace(",", ""))


class GpuResultsTest(unittest.TestCase):
    def check(self, shown: list, measured: list):
        """Each number is the measured one, rounded to the digits that are shown."""
        self.assertEqual(len(shown), len(measured))
        for text, value in zip(shown, measured):
            self.assertEqual(text, f"{value:,.{len(text.partition('.')[2])}f}", (shown, measured))

    def model_rows(self) -> list:
        return [json.loads(line) for line in results("models_gpu").splitlines()[1:]]

    def test_attention(self):
        measured = json.loads(results("attention_gpu"))["rows"]
        table = rows_behind("tokens, batch × heads, density")
        self.assertEqual(len(table), 9)
        for label, *shown in table:
            precision, n, heads, density = re.fullmatch(r"(\w+): ([\d,]+), (\d+), ([\d.]+) %", label).groups()
            row, = (row for row in measured if (row["precision"], row["n"], row["batch_heads"], row["target_density"])
                    == (precision, number(n), int(heads), float(density) / 100))
            self.check(shown, [row["membership_ms"], row["ours_ms"], row["ours_given_ms"], row["ours_dense_ms"],
                               row["peers"][PEER[precision]]])

    def test_what_a_drawn_layer_costs(self):
        ratios = [(row["membership_ms"] + row["ours_ms"]) / row["peers"]["sdpa_cudnn_bf16"]
                  for row in json.loads(results("attention_gpu"))["rows"] if row["precision"] == "bf16"]
        shown = re.search(r"takes ([\d.]+) to ([\d.]+) times as long as cuDNN's", " ".join(words.read(DOCUMENT).split()))
        self.check(shown.groups(), [min(ratios), max(ratios)])

    def test_sbm_models(self):
        table = rows_behind("SBM model")
        self.assertEqual(len(table), 6)
        for label, *shown in table:
            n, density = re.fullmatch(r"([\d,]+) tokens, ([\d.]+) %", label).groups()
            rows = {row["precision"]: row for row in self.model_rows() if row.get("what") == "sbm512"
                    and (row["n"], row["target"]) == (number(n), float(density) / 100)}
            self.check(shown, [rows[precision][f"{way}_ms"] for precision in ("bf16", "fp32") for way in ("own", "dense")])

    def test_dense_models(self):
        texts = [(128, 1), (512, 16), (128, 64)]  # tokens and texts of BERT's rows, and of GPT-2's
        prompts = [(32, 1), (32, 16)]
        table = rows_behind("other models")
        self.assertEqual(len(table), len(texts) + len(prompts))
        rows = self.model_rows()
        for (label, *shown), (n, batch) in zip(table, texts):
            self.assertIn(f"BERT-base, {n} tokens", label)
            measured = []
            for precision in ("bf16", "fp32"):
                def row(what):
                    return next(row for row in rows if row["what"] == what and (row["precision"], row["n"], row["batch"])
                                == (precision, n, batch))  # noqa: B023
                measured += [row("bert")["compute_ms"], row("torch bert")["eager_ms"], row("torch bert")["graph_ms"]]
            self.check(re.findall(r"[\d.]+", " ".join(shown)), measured)
        for (_, *shown), (prompt, at_once) in zip(table[len(texts):], prompts):
            measured = []
            for precision in ("bf16", "fp32"):
                measured += [next(row["tokens_s"] for row in rows if row["what"] == what and (
                    row["precision"], row["prompt"], row.get("at_once", row.get("batch"))) == (precision, prompt, at_once))
                    for what in ("gpt2 generate", "torch gpt2")]
            self.check(shown, measured)


if __name__ == "__main__":
    unittest.main()
