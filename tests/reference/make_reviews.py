#!/usr/bin/env python3
"""Writes what sentence-transformers makes of a few texts with the bundled review-encoder and review-ranker, in float64.

    pip install torch sentence-transformers
    tests/reference/make_reviews.py tests/testdata_reviews.json

`embeddings`: of each text that of `encode`. `scores`: of the query with each text that of `predict`.
"""

import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import sentence_transformers  # noqa: E402
import torch  # noqa: E402

MODELS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "models"
QUERY = "a warm, funny and moving film"
TEXTS = ["I loved every minute of it.", "a dull and lifeless mess", "Naïve 你好, zzyzx!"]  # not all words are known


def main():
    torch.set_num_threads(1)
    encoder = sentence_transformers.SentenceTransformer(str(MODELS / "review-encoder" / "1"), device="cpu").double()
    ranker = sentence_transformers.CrossEncoder(str(MODELS / "review-ranker" / "1"), device="cpu")
    ranker.model.double()
    scores = [ranker.predict([(QUERY, text)])[0].item() for text in TEXTS]  # one by one: padding costs digits
    answer = {"query": QUERY, "texts": TEXTS, "scores": scores,
              "embeddings": [encoder.encode([text])[0].tolist() for text in TEXTS]}
    pathlib.Path(sys.argv[1]).write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
