"""The answer of PyPI's `tokenizers` to a request, in the form of tests/model/tokenizers/tokenize_lines.cc."""


def byte_places(text):
    """The byte at which each character begins, and the end."""
    places = [0]
    for c in text:
        places.append(places[-1] + len(c.encode()))
    return places


def answer(tokenizer, request):
    tokenizer.no_truncation()
    if "max" in request:
        tokenizer.enable_truncation(request["max"], direction="left" if request.get("left") else "right")
    texts = [request["text"], request.get("second", "")]
    encoding = tokenizer.encode(texts[0], request.get("second"), add_special_tokens=request.get("special", True))
    places = [byte_places(text) for text in texts]
    sequences = [-1 if s is None else s for s in encoding.sequence_ids]
    offsets = [[0, 0] if s < 0 else [places[s][begin], places[s][end]]
               for s, (begin, end) in zip(sequences, encoding.offsets)]
    return {"ids": encoding.ids, "type_ids": encoding.type_ids, "offsets": offsets, "sequences": sequences,
            "words": [-1 if w is None else w for w in encoding.word_ids],
            "decoded": tokenizer.decode(encoding.ids, skip_special_tokens=False),
            "plain": tokenizer.decode(encoding.ids, skip_special_tokens=True)}


def requests(texts):
    """Requests of every sort for the texts: alone, in pairs, without special tokens, truncated."""
    for i, text in enumerate(texts):
        request = {"text": text}
        if i % 5 == 1:
            request["second"] = texts[i - 1]
        if i % 7 == 2:
            request["special"] = False
        if i % 4 == 3:
            request["max"] = 5 + i % 9
            request["left"] = i % 8 == 3
        yield request
