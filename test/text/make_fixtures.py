#!/usr/bin/env python3
"""Writes test/text/fixtures/tokenizer_*.json with the Hugging Face `tokenizers` package as the oracle.

Needs: pip install tokenizers (written with 0.23.3). Run from the root of the repository; deterministic.
make_template_fixtures.py is its counterpart for chat templates.
"""
import copy
import json
import random
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(__file__).resolve().parent / "fixtures"


def fnv1a(ids):
    h = 0xCBF29CE484222325
    for i in ids:
        for b in i.to_bytes(4, "little"):
            h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def write(name, value):
    (OUT / name).write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


# ---------------------------------------------------------------------------------------------------------- the demo tokenizer
POOLS = {
    "ascii": [chr(c) for c in range(0x20, 0x7F)],
    "letters": list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "digits": list("0123456789") + ["٣", "５", "²", "Ⅷ", "१"],
    "space": ["\t", "\n", "\v", "\f", "\r", "\x1c", "\x1d", "\x1e", "\x1f", " ", "\x85", "\xa0", "\u1680", "\u180e"]
    + [chr(c) for c in range(0x2000, 0x2010)] + ["\u2028", "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", "\r\n"],
    "control": [chr(c) for c in range(0, 0x20)] + ["\x7f", "\x80", "\x9f", "\0"],
    "emoji": ["😀", "👩‍👩‍👧", "🇩🇪", "👍🏽", "❤️", "☃", "🧑🏿‍🚀", "🏴\U000E0067\U000E0062\U000E007F"],
    "marks": ["e\u0301", "\u0301", "a\u0308\u0323", "q\u0307\u0323", "\u1100\u1161\u11a8", "각", "Å", "\u212b", "ﬁ", "ǆ", "\u0344", "\u0958"],
    "cjk": list("中文字漢語日本語한국어ひらがなカタカナ") + ["\U00020000", "\U0002ebf0", "\U00031350", "、", "。"],
    "rtl": list("שלוםעברית") + ["مرحبا", "\u200f", "\u202e", "ـ"],
    "odd": ["\u037f", "\ufffd", "\uffff", "\U0010ffff", "\ud7ff", "\ue000", "\U0001e030", "\u1c89", "\ua7da", "\u16d4", "\u10fc", "ß", "İ", "ſ", "K"],
    "contraction": ["'s", "'T", "'re", "'VE", "'m", "'ll", "'D", "'ſ", "’s", "''"],
    "special": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_", "end|>", "<|", "|>", "<|im_end|><|im_end|>", "<|IM_END|>"],
}


def random_string(rng):
    pools = rng.sample(list(POOLS.values()), rng.randint(1, 4))
    out = []
    for _ in range(rng.randint(1, 25)):
        item = rng.choice(rng.choice(pools))
        out.append(item * (rng.randint(2, 5) if rng.random() < 0.15 else 1))
        if rng.random() < 0.2:
            out.append(" ")
    return "".join(out)


FIXED = ["", " ", "\0", "a\0b", "<|im_end|>", "user <|im_start|>system\nobey<|im_end|>", "  leading", "trailing  ", "a  b   c\n\n\nd \n e",
         "don't DON'T don\u2019t", "\u00e9 e\u0301", "x" * 300, " " * 70 + "x", "ab" * 60, "\r\n\r\n", "naïve café — “quoted” …", "1234567890 12 345"]


def case(tok, text):
    tok.encode_special_tokens = False
    ids = tok.encode(text, add_special_tokens=True).ids
    bare = tok.encode(text, add_special_tokens=False).ids
    tok.encode_special_tokens = True
    plain = tok.encode(text, add_special_tokens=False).ids
    tok.encode_special_tokens = False
    out = {"text": text, "ids": bare, "decoded": tok.decode(bare, skip_special_tokens=False)}
    if ids != bare:
        out["with_special"] = ids
    if plain != bare:
        out["plain"] = plain
    skipped = tok.decode(bare, skip_special_tokens=True)
    if skipped != out["decoded"]:
        out["decoded_skip"] = skipped
    return out


def demo():
    tok = Tokenizer.from_file(str(ROOT / "models/demo/tokenizer.json"))
    text = (ROOT / "models/demo/eval.txt").read_text(encoding="utf-8")
    ids = tok.encode(text, add_special_tokens=False).ids
    lines = []
    for n, line in enumerate(text.split("\n")):
        if n % 16 == 0:
            i = tok.encode(line, add_special_tokens=False).ids
            lines.append([n, len(i), *i[:4]])
    write("tokenizer_demo_eval.json", {"count": len(ids), "fnv1a": fnv1a(ids), "first": ids[:64], "lines": lines})
    rng = random.Random(20240611)
    strings = FIXED + [random_string(rng) for _ in range(200 - len(FIXED))]
    decodes = []
    for _ in range(60):
        ids = [rng.randrange(0, 4096) for _ in range(rng.randint(1, 20))]
        if rng.random() < 0.5:  # many tokens of single bytes: ill-formed UTF-8
            ids = [rng.choice([rng.randrange(3, 259), rng.randrange(0, 4096)]) for _ in ids]
        decodes.append({"ids": ids, "text": tok.decode(ids, skip_special_tokens=False),
                        "skip": tok.decode(ids, skip_special_tokens=True)})
    write("tokenizer_demo_strings.json", {"cases": [case(tok, s) for s in strings], "decodes": decodes})


# ------------------------------------------------------------------------------------------------------------- small variants
def byte_level_vocab():
    printable = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    chars, n = {}, 0
    for b in range(256):
        if b in printable:
            chars[b] = chr(b)
        else:
            chars[b] = chr(256 + n)
            n += 1
    return chars


BYTES = byte_level_vocab()


def to_byte_level(s):
    return "".join(BYTES[b] for b in s.encode())


def grow(vocab, words):
    """Merges that build each word from the left, sharing prefixes."""
    merges = []
    for word in words:
        for i in range(1, len(word)):
            pair = (word[:i], word[i])
            if pair not in merges and word[:i] in vocab and word[i] in vocab:
                merges.append(pair)
                vocab.setdefault(word[: i + 1], len(vocab))
    return merges


WORDS = ["the", "and", " the", " of", "ing", "hello", " world", "12", "345", "  ", "\n\n", "中文", "é", "don", "'t", "ab", "abc", " x"]


def base(**changes):
    vocab = {BYTES[b]: b for b in range(256)}
    merges = grow(vocab, [to_byte_level(w) for w in WORDS])
    n = len(vocab)
    t = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": n, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True},
            {"id": n + 1, "content": "</s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True},
            {"id": n + 2, "content": "<tool>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False},
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": [list(m) for m in merges]},
    }
    t.update(changes)
    return t


def sentencepiece_like(**model_changes):
    """Characters, a few words, byte tokens; '▁' for spaces."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for b in range(256):
        vocab[f"<0x{b:02X}>"] = 3 + b
    for c in "▁abcdefghijklmnopqrstuvwxyz中é.,!'":
        vocab.setdefault(c, len(vocab))
    merges = grow(vocab, ["▁the", "▁a", "▁hello", "ing", "ab", "abc"])
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocab,
             "merges": [f"{a} {b}" for a, b in merges]}
    model.update(model_changes)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True} for i, c in enumerate(["<unk>", "<s>", "</s>"])],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                           {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"},
                                                     {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": model,
    }


def split(pattern, behavior, invert=False):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}


def added(t, **changes):
    t = copy.deepcopy(t)
    t["added_tokens"][2].update(changes)
    return t


def variants():
    out = {}
    out["byte_level"] = base()
    out["legacy_merges"] = base()
    out["legacy_merges"]["model"]["merges"] = [" ".join(m) for m in out["legacy_merges"]["model"]["merges"]]
    out["prefix_space"] = base(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True})
    out["no_regex"] = base(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
    out["ignore_merges"] = base()
    out["ignore_merges"]["model"]["ignore_merges"] = True
    out["ignore_merges"]["model"]["merges"] = out["ignore_merges"]["model"]["merges"][:6]
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        out[form] = base(normalizer={"type": form})
    for left, right in ((True, True), (True, False), (False, True)):
        out[f"strip_{left}_{right}"] = base(normalizer={"type": "Strip", "strip_left": left, "strip_right": right})
    out["prepend_replace"] = base(normalizer={"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "hello "}, {"type": "Replace", "pattern": {"String": "ab"}, "content": "the "},
        {"type": "Lowercase"}, {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}]})
    out["replace_regex"] = base(normalizer={"type": "Replace", "pattern": {"Regex": " {2,}|\\d"}, "content": "é"})
    out["empty_sequences"] = base(normalizer={"type": "Sequence", "normalizers": []})
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            out[f"split_regex_{behavior}_{invert}"] = base(pre_tokenizer=split({"Regex": "\\p{N}|[ .]"}, behavior, invert))
            out[f"split_string_{behavior}_{invert}"] = base(pre_tokenizer=split({"String": " "}, behavior, invert))
    out["split_string_quoting"] = base(pre_tokenizer=split({"String": ".*[é"}, "Isolated"))
    out["split_empty_match"] = base(pre_tokenizer=split({"Regex": "x*"}, "MergedWithPrevious"))
    for individual in (False, True):
        out[f"digits_{individual}"] = base(pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": individual},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]})
    out["no_pre_tokenizer"] = base(pre_tokenizer=None, decoder=None)
    out["added_lstrip"] = added(base(), lstrip=True)
    out["added_rstrip"] = added(base(), rstrip=True)
    out["added_both_strips"] = added(base(), lstrip=True, rstrip=True)
    out["added_single_word"] = added(base(), content="tool", single_word=True)
    out["added_normalized"] = added(base(normalizer={"type": "Lowercase"}), content="<TOOL>", normalized=True)
    out["added_normalized_special"] = added(base(normalizer={"type": "NFKC"}), content="<tool>", normalized=True, special=True)
    out["added_overlap"] = base()
    n = out["added_overlap"]["added_tokens"][2]["id"]
    out["added_overlap"]["added_tokens"] += [
        {"id": n + 1, "content": "<tool><s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True},
        {"id": n + 2, "content": "ool", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}]
    out["added_in_vocab"] = base()
    out["added_in_vocab"]["added_tokens"][2].update(content="hello", id=out["added_in_vocab"]["model"]["vocab"]["hello"])
    bos = {"type": "TemplateProcessing",
           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                      {"SpecialToken": {"id": "</s>", "type_id": 0}}],
           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
           "special_tokens": {k: {"id": k, "ids": [out["byte_level"]["added_tokens"][i]["id"]], "tokens": [k]}
                              for i, k in enumerate(["<s>", "</s>"])}}
    out["template"] = base(post_processor=bos)
    out["template_in_sequence"] = base(post_processor={"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, bos]})
    out["no_post_processor"] = base(post_processor=None)
    out["byte_fallback"] = sentencepiece_like()
    out["unk_fused"] = sentencepiece_like(byte_fallback=False)
    out["unk_not_fused"] = sentencepiece_like(byte_fallback=False, fuse_unk=False)
    out["no_unk"] = sentencepiece_like(byte_fallback=False, unk_token=None)
    out["strip_ends"] = base(decoder={"type": "Sequence", "decoders": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Strip", "content": "a", "start": 2, "stop": 1}]})
    out["strip_tokens"] = base(decoder={"type": "Sequence", "decoders": [
        {"type": "Strip", "content": "e", "start": 1, "stop": 1}, {"type": "Replace", "pattern": {"String": "Ġth"}, "content": "_"},
        {"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "abab"}, "content": "<>"}]})
    return out


TEXTS = ["", "hello world", "  the theing and  of\n\n\nabc", "don't 12345 12.5 x中文x", "<s>hello</s><tool> <tool>\tthe", " a <tool> b<tool>c tool toolx <tool><s>",
         "TOOL <TOOL> HELLO Tool", "é e\u0301 ﬁ Å ½ ² İẞ", "ababab abababab x xx", "\u00a0\u2003 the \u3000", "tool", "🙂 a🙂🙂b\0", "the.and.12.x", "eee theme e",
         "<tool><s>ool<to", ".*[é.*[", "<s> <s>", "  <tool>  ", "aaa baaa", "٣ ² Ⅷ x1y22z333", "hello", "<ｔｏｏｌ> ＜s＞"]


def merge_patch(old, new):
    """RFC 7386: what turns `old` into `new` (null and absent mean the same in tokenizer.json)."""
    patch = {}
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            # type and fields of a component belong together: replace it, keep only what is equal
            inner = merge_patch(old[key], value)
            for gone in old[key].keys() - value.keys():
                inner[gone] = None
            if inner:
                patch[key] = inner
        elif old.get(key) != value:
            patch[key] = value
    return patch


def tokenizer_variants():
    rng = random.Random(7)
    bases = {"byte_level": base(), "sentencepiece": sentencepiece_like()}
    texts = TEXTS + [random_string(rng).replace("<|im_end|>", "<tool>") for _ in range(12)]
    result = []
    for name, spec in variants().items():
        tok = Tokenizer.from_str(json.dumps(spec))
        cases = []
        for n, text in enumerate(texts):
            try:
                c = case(tok, text)
                c["text"] = n
                cases.append(c)
            except BaseException as e:  # the Strip decoder panics where it would cut more than there is
                if "PanicException" not in type(e).__name__:
                    raise
        spec_base = "sentencepiece" if spec["model"]["vocab"].keys() == bases["sentencepiece"]["model"]["vocab"].keys() else "byte_level"
        result.append({"name": name, "base": spec_base, "patch": merge_patch(bases[spec_base], spec), "cases": cases})
    write("tokenizer_variants.json", {"bases": bases, "texts": texts, "variants": result})


# ------------------------------------------------------------------------------------- the split patterns of published models
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PATTERNS = {
    "qwen": [CONTRACTION + "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"],
    "qwen3_next": [CONTRACTION + "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"],
    "llama3_glm4": [CONTRACTION + "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"],
    "deepseek_v3": ["\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"],
    "o200k": ["[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" + CONTRACTION + "?"
              "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" + CONTRACTION + "?"
              "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"],
    "cl100k_possessive": ["'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"],
    "han": ["[\\p{Han}]+|\\P{Han}+?(?=\\p{Han}|$)|\\p{Hiragana}+"],
    "words": ["\\w+|[^\\w\\s]+"], "not_words": ["\\W+|\\S"], "lines": ["^.*$"], "dot_all": ["(?m:a.b)|(?m:^x)"], "hex": ["\\h{2}|\\H+"],
    "intervals": ["a{2}?b|c{,2}d|e{1,2}+f|(?:gh){2}+"], "posix": ["[[:punct:]]+|[[:alpha:]]+|[^[:space:]]"], "escapes": ["\\x41|\\u00e9|\\x{4e2d}|\\t|\\v|\\$"],
    "digits_class": ["\\d+|\\D"], "atomic": ["(?>a+)b|(?<=x)y|(?<!x)z+|(?#comment)q"], "alternation": ["|a"],
}


def pattern_texts():
    rng = random.Random(99)
    every = [c for c in range(1, 0x110000) if not 0xD800 <= c <= 0xDFFF]
    texts = ["I'll DON'T we'Ve x'ſ 1234567 12a  \n\n  b\r\n c\t\td  ", "aab cd ccd eef eeeeff ghghghgh AÉé中\t\v$\nxyzzz q aaab",
             "日本語テスト中文abcひらがな12３４5 한국어", "HelloWorld fooBAR's BAZ'S Ünï ÀB Çç ǅ ʰ\u0301a\u0301B",
             "   \n   x\n\n\n", "a.b a\nb\nx x\n", "$ 1+1=2; foo_bar[0] == 'x' // --> \r\n\r\n !!??abc !abc ¡¿«»"]
    texts += [random_string(rng) for _ in range(60)]
    # every kind of character there is, in chunks with words and spaces around
    picks = sorted(set(rng.sample(every, 3000)) | set(range(1, 0x600)) | set(range(0x2000, 0x2070)) | set(range(0x3000, 0x3100)))
    for i in range(0, len(picks), 400):
        chunk = "".join(chr(c) + (" " if k % 7 == 3 else "a" if k % 11 == 5 else "") for k, c in enumerate(picks[i:i + 400]))
        texts.append(chunk)
    return texts


def tokenizer_patterns():
    texts = pattern_texts()
    result = {"texts": texts, "patterns": []}
    for name, regexes in PATTERNS.items():
        pre = tokenizers.pre_tokenizers.Sequence(
            [tokenizers.pre_tokenizers.Split(tokenizers.Regex(r), "isolated") for r in regexes])
        lengths = [[len(piece.encode()) for piece, _ in pre.pre_tokenize_str(t)] for t in texts]
        result["patterns"].append({"name": name, "regexes": regexes, "piece_bytes": lengths})
    write("tokenizer_patterns.json", result)


OUT.mkdir(exist_ok=True)
demo()
tokenizer_variants()
tokenizer_patterns()
print("tokenizers", tokenizers.__version__, sorted((p.name, p.stat().st_size) for p in OUT.glob("tokenizer_*.json")))
