"""Small tokenizers of every kind that is served, in the shapes of the models that ship them, and texts to try them on.
Needs PyPI's `tokenizers` and `sentencepiece`."""
import io
import json
import pathlib
import random
import re
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
MULTILINGUAL = [
    "Der Fluß fließt über die Brücke, während Ärzte öffentlich über Übermut reden.", "À bientôt, où êtes-vous allé ?",
    "Всё смешалось в доме Облонских, и каждая семья несчастлива по-своему.", "东京と大阪の間を走る新幹線は速いです。",
    "我能吞下玻璃而不伤身体，今天的天气很好。", "모든 인간은 태어날 때부터 자유로우며", "كل إنسان حر في بلاده",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में", "Ελληνικά γράμματα είναι όμορφα", "😀 👍🏽 👩‍👩‍👧 🇩🇪 ½ ﬁ ① Ⅷ ｶﾞ"]


def corpus():
    """Lines of English and of code from the repository, and some in other scripts."""
    lines = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        lines += [line for line in path.read_text().splitlines() if line.strip()]
    return lines + MULTILINGUAL * 20


def special(*contents, **options):
    return [AddedToken(content, special=True, normalized=False, **options) for content in contents]


def template(tokenizer, single, pair, names):
    return processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names])


def word_piece(size, lowercase):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=None if lowercase else False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(corpus(), trainers.WordPieceTrainer(
        vocab_size=size, show_progress=False, special_tokens=special("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")))
    tokenizer.decoder = decoders.WordPiece()
    if lowercase:
        tokenizer.post_processor = template(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1",
                                            ["[CLS]", "[SEP]"])
    else:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def byte_level(size, pre_tokenizer, specials, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def gpt2(size):
    tokenizer = byte_level(size, pre_tokenizers.ByteLevel(add_prefix_space=False), special("<|endoftext|>"))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def roberta(size):
    tokenizer = byte_level(size, pre_tokenizers.ByteLevel(add_prefix_space=True),
                           special("<s>", "<pad>", "</s>", "<unk>") + special("<mask>", lstrip=True))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def split_first(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3(size):
    tokenizer = byte_level(size, split_first(LLAMA3), [], ignore_merges=True)
    tokenizer.add_special_tokens(special("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"))
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        template(tokenizer, "<|begin_of_text|> $A", "<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                 ["<|begin_of_text|>"])])
    return tokenizer


def qwen(size):
    tokenizer = byte_level(size, split_first(QWEN), [])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def modernbert(size):
    """Runs of spaces are added tokens, which are normalised."""
    tokenizer = byte_level(size, pre_tokenizers.ByteLevel(add_prefix_space=False), special("<|padding|>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(8, 1, -1)])
    tokenizer.add_special_tokens(special("[CLS]", "[SEP]") + special("[MASK]", lstrip=True))
    tokenizer.post_processor = template(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", ["[CLS]", "[SEP]"])
    return tokenizer


def with_bytes(tokenizer):
    """The same BPE with the tokens <0x00> to <0xFF>, which stand before the pieces that were trained."""
    data = json.loads(tokenizer.to_str())
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [token for token, _ in sorted(data["model"]["vocab"].items(), key=lambda item: item[1])
              if token not in names]
    data["model"]["vocab"] = {token: i for i, token in enumerate(names + pieces)}
    return data


def llama2(size, metaspace):
    """Metaspace: as Mistral's newer files and Llama's "legacy: false"."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=special("<unk>", "<s>", "</s>"), limit_alphabet=120))
    tokenizer = Tokenizer.from_str(json.dumps(with_bytes(tokenizer)))
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = template(tokenizer, "<s> $A", "<s> $A <s>:1 $B:1", ["<s>"])
    return tokenizer


def message_field(message, wanted):
    """The bytes of a field of a Protobuf message, without Protobuf."""
    def varint(at):
        value = shift = 0
        while True:
            value |= (message[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if message[at - 1] < 0x80:
                return value, at
    at = 0
    while at < len(message):
        key, at = varint(at)
        kind = key & 7
        if kind == 2:
            size, at = varint(at)
            if key >> 3 == wanted:
                return message[at:at + size]
            at += size
        else:
            at = varint(at)[1] if kind == 0 else at + (4 if kind == 5 else 8)
    raise ValueError(f"no field {wanted}")


def charsmap(rules):
    """SentencePiece's own: nmt_nfkc, or one of a few rules, which is small."""
    import sentencepiece
    options = {"normalization_rule_name": "nmt_nfkc"}
    if rules:
        path = pathlib.Path("/tmp") / "edgewise-tokenizer-rules.tsv"
        path.write_text("".join(f"{' '.join('%X' % ord(c) for c in old)}\t{' '.join('%X' % ord(c) for c in new)}\n"
                                for old, new in rules))
        options = {"normalization_rule_tsv": str(path)}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus()), model_writer=model, vocab_size=600,
                                             model_type="unigram", hard_vocab_limit=False, minloglevel=2, **options)
    return message_field(message_field(model.getvalue(), 3), 2)  # normalizer_spec.precompiled_charsmap


SMALL_RULES = [("\n", " "), ("\t", " "), ("\r", " "), ("\r\n", " "), ("\u00a0", " "), ("\u3000", " "), ("\u200b", ""),
               ("\u00ad", ""), ("ﬁ", "fi"), ("½", "1⁄2"), ("①", "1"), ("Ａ", "A"), ("e\u0301", "\u00e9"), ("ｶﾞ", "ガ"),
               ("ﷺ", "صلى الله عليه وسلم"), ("…", "...")]


def unigram(size, small, byte_fallback):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Precompiled(charsmap(SMALL_RULES if small else None)), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(corpus(), trainers.UnigramTrainer(
        vocab_size=size, show_progress=False, special_tokens=specials, unk_token="<unk>"))
    data = json.loads(tokenizer.to_str())
    if byte_fallback:
        data["model"]["byte_fallback"] = True
        data["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    else:
        data["model"]["vocab"].append(["<mask>", 0.0])
    tokenizer = Tokenizer.from_str(json.dumps(data))
    if byte_fallback:
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    else:
        tokenizer.add_special_tokens(special("<mask>", lstrip=True))
        tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = template(tokenizer, "<s> $A </s>", "<s> $A </s> </s> $B </s>", ["<s>", "</s>"])
    return tokenizer


def mixed(size):
    """Parts that the other kinds lack, and every option of added tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=False))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip(),
        normalizers.Replace("edge", "EDGE")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Punctuation("merged_with_previous")])
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=special("[UNK]"), limit_alphabet=80))
    tokenizer.add_tokens([AddedToken("Density", single_word=True), AddedToken("BUDGET", rstrip=True),
                          AddedToken("<x>", lstrip=True, rstrip=True, normalized=False)])
    return tokenizer


def word_level(size):
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.Whitespace()])
    tokenizer.train_from_iterator(corpus(), trainers.WordLevelTrainer(
        vocab_size=size, show_progress=False, special_tokens=special("[PAD]", "[UNK]", "[CLS]", "[SEP]")))
    tokenizer.post_processor = template(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ["[CLS]", "[SEP]"])
    return tokenizer


def scripts(size):
    """As SentencePieceUnigramTokenizer of `tokenizers`, cut at scripts too."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.UnicodeScripts()])
    tokenizer.train_from_iterator(corpus(), trainers.UnigramTrainer(
        vocab_size=size, show_progress=False, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def kinds(small, names=()):
    """{name: tokenizer}, of these names or of all. Small ones are committed."""
    size = 420 if small else 3000
    makers = {
        "bert": lambda: word_piece(size, True), "bert-cased": lambda: word_piece(size, False), "gpt2": lambda: gpt2(size),
        "roberta": lambda: roberta(size), "llama3": lambda: llama3(size), "qwen": lambda: qwen(size),
        "modernbert": lambda: modernbert(size), "llama2": lambda: llama2(size, False), "mistral": lambda: llama2(size, True),
        "xlm-roberta": lambda: unigram(size, small, False), "unigram-bytes": lambda: unigram(size, small, True),
        "mixed": lambda: mixed(size), "word-level": lambda: word_level(size), "scripts": lambda: scripts(size)}
    return {name: make() for name, make in makers.items() if not names or name in names}


def blocks():
    """The assigned characters of Unicode, in runs of 64."""
    characters = [chr(c) for c in range(0x20, 0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    return [characters[i:i + 64] for i in range(0, len(characters), 64)]


NUGGETS = ["it's", "WE'LL", "don\u2019t", "'ſ", "  ", "   \n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u200b", "\u200d", "\ufeff",
           "\ufffd", "\x00", "\x07", "\x1b[0m", "\x7f", "\x85", "\u2028", "3.14159", "1234567", "١٢٣", "Ⅷ", "½", "e\u0301\u0323",
           "a\u0323\u0301\u0300", "\u1100\u1161\u11a8", "각", "\u0344", "İstanbul", "ΣΊΣΥΦΟΣ", "straße", "ǅ", "ﬁ", "ﷺ", "Å", "한국어", "東京都",
           "𠀀𪜶", "👩\u200d👩\u200d👧\u200d👦", "👍🏽", "🇩🇪🇫🇷", "1️⃣", "https://a.b/c?d=e&f=%20", "foo_bar(x, y);", "</s>", "<s>", "<mask>",
           " <mask> ", "[MASK]", "[CLS]", "<|endoftext|>", "<|eot_id|>", "Density", "density", "Densitys", "BUDGET  x", " <x> ",
           "<0x41>", "▁", "▁▁a", "Ġ", "##ing", "café", "naïve", "क्षि", "ไทย", "שָׁלוֹם", "العربية", "…", "—", "‘quoted’", "a\u00adb"]


def lines(count, seed):
    """Texts of every sort; each begins anew from the seed."""
    rng = random.Random(seed)
    words = [word for line in corpus() for word in re.split(r"(?<=\s)", line) if word]
    runs = blocks()
    texts = [""]
    while len(texts) < count:
        sort = rng.randrange(12)
        if sort < 4:
            text = "".join(rng.choices(words, k=rng.randrange(1, 24)))
        elif sort < 7:
            text = "".join(rng.choices(rng.choice(runs), k=rng.randrange(1, 24)))
        elif sort < 10:
            text = "".join(rng.choice((rng.choice(NUGGETS), rng.choice(words), " ")) for _ in range(rng.randrange(1, 10)))
        elif sort < 11:
            text = "".join(rng.choice(rng.choice(runs)) for _ in range(rng.randrange(1, 16)))
        else:
            text = "".join(chr(rng.choice((rng.randrange(1, 128), rng.randrange(1, 0x300), 0x20))) for _ in range(20))
        if rng.randrange(50) == 0:
            text = text.upper()
        if len(texts) % 1000 == 999:  # a word of 10,000 characters
            unit = rng.choice(("a", "ab", "é", "東", "x1", "e\u0301", " ", "\n", "'", "the", "😀"))
            text = (unit * 10000)[:10000] + rng.choice(("", "z"))
        texts.append(text)
    return texts
