"""The answers of transformers for causal language models in float64: next tokens, log-likelihoods and greedy texts."""

import torch

SURE = 1e-4  # logits that are closer than this may be either way round in float32


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0]


def answer(model, entries):
    """Adds the logits of the token that follows each entry, and ln p of each of its tokens but the first."""
    for entry in entries:
        ids = entry["token_ids"]
        rows = logits_of(model, ids)
        entry["logits"] = rows[-1].tolist()
        entry["token_log_likelihoods"] = [rows.log_softmax(-1)[i, token].item() for i, token in enumerate(ids[1:])]
    return entries


def greedy(model, ids, end_ids, most, context):
    """The new tokens, how they end, and how many are sure. A full context predicts the last token."""
    new, sure, unsure = [], 0, False
    finish = "length"
    while len(new) < most and len(ids) + len(new) <= context:
        best = logits_of(model, ids + new)[-1].topk(2)
        unsure = unsure or (best.values[0] - best.values[1]).item() < SURE
        sure += not unsure
        new.append(best.indices[0].item())
        if new[-1] in end_ids:
            finish = "stop"
            break
    return new, finish, sure


def generations(model, tokenizer, prompts, end_ids, context):
    """`prompts`: (text, or token ids; new tokens at most)."""
    entries = []
    for prompt, most in prompts:
        entry = {"text": prompt} if isinstance(prompt, str) else {}
        entry["token_ids"] = tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        entry["max_new_tokens"] = most
        new, entry["finish"], entry["sure"] = greedy(model, entry["token_ids"], end_ids, most, context)
        entry["new_token_ids"] = new
        # The token that ends a text is no part of it.
        shown = new[:-1] if entry["finish"] == "stop" else new
        entry["new_text"] = tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        entries.append(entry)
    return entries
