"""Texts for comparing tokenizers: many scripts, spaces, control characters, and what random draws make of them."""

import random

SAMPLES = [
    "The quick brown fox jumps over the lazy dog, and then it rests in the shade of a very old tree.",
    "Tokenizers cut text into pieces; models read the pieces and guess which one comes next.",
    "In 1969, 384,400 km from home, two people walked on the Moon; 3.14159 is not quite pi.",
    "def encode(self, text: str) -> list[int]:\n    if not text:\n        return []\n\treturn [self.ids[c] for c in text]\n",
    "for (int i = 0; i < 10; ++i) {\n  sum += values[i] * 2;  // doubled\n}\n\n\nreturn sum;\n",
    "<table><tr><td>1</td><td>&nbsp;two</td></tr></table>",
    '{"name": "Ada", "age": 36, "tags": ["math", "engines"], "ok": true}',
    "Die Straße führt über schöne Hügel, und größere Städte gibt es hier kaum.",
    "L'été dernier, nous avons mangé des crêpes près de la forêt ; c'était délicieux !",
    "El niño corrió mañana y tarde; ¿quién sabe por qué? ¡Nadie!",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Îşğü ÇÖŞİ: İstanbul'da güneşli bir gün, ılık rüzgâr.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Щеню є ґанок, їжак і яблуко на столі.",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.",
    "האותיות נכתבות מימין לשמאל, והמספרים 123 משמאל לימין.",
    "النص العربي يُكتب من اليمين إلى اليسار، وهذا مثالٌ قصير.",
    "सभी मनुष्य जन्म से स्वतंत्र हैं और उन्हें समान अधिकार प्राप्त हैं।",
    "সমস্ত মানুষ স্বাধীনভাবে জন্মগ্রহণ করে। தமிழ் ஒரு பழமையான மொழி.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "我能吞下玻璃而不伤身体。今天天气很好，我们去公园散步吧！",
    "吾輩は猫である。名前はまだ無い。カタカナとひらがなと漢字を混ぜる。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "ყველა ადამიანი იბადება თავისუფალი. Բոլոր մարդիկ ծնվում են ազատ։",
    "ሁሉም ሰዎች ነፃ ሆነው ተወልደዋል። ᓄᓇᕗᑦ ᐃᓄᒃᑎᑐᑦ",
    "😀 😃 😄 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 👍🏽 ❤️ ☕ ✨ 🚀",
    "∀x ∈ ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β → γ; ∑ᵢ xᵢ² ≤ ∞",
    "½ + ¼ = ¾, x² + y³, H₂O, ① ② Ⅳ ﬁ ﬂ ™ © €5 £6 ¥7",
    "e\u0301 = é, A\u030a = Å, \u1112\u1161\u11ab = 한, q\u0307\u0323",
    "Don't, won't, I'LL, they've, we'd, it's; \u201cquotes\u201d \u2018single\u2019 \u2014 dashes\u2026",
    "https://example.org/a/b?c=d&e=%20f#g user.name+tag@example.com C:\\Users\\x /usr/local/bin",
    "AAAAAAAAAAAAAAAA aaaaaaaaaaaaaaaaaaaaaaaaa 0000000000000000 ----------------",
]
PARTS = [
    " ",
    "  ",
    "   ",
    "     ",
    " " * 13,
    " " * 40,
    "\n",
    "\n\n",
    "\n\n\n",
    "\n" * 9,
    "\t",
    "\t\t",
    "\r\n",
    "\r",
    "\x0b\x0c",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u2028",
    "\u2581",
    "\u2581\u2581",
    " \u2581 ",
    "\x00",
    "\x01\x02",
    "\x1b[0m",
    "\x7f",
    "\x85",
    "\ufffd",
    "\uffff",
    "\U0010ffff",
    "\U000e0041",
    "\ue000",
    "a",
    "ab",
    "the",
    "The",
    " the",
    "ing",
    ".",
    "...",
    "!?",
    "'s",
    "'S",
    "'\u017f",
    "1",
    "12",
    "123456",
    "\u0663\u0664",
    "x\u0301\u0302",
    "\u0301",
    "中",
    "中文",
    "カ",
    "한",
    "é",
    "ß",
    "İ",
    "😀",
    "👩\u200d👧",
    "<",
    ">",
    "<0x41>",
    "<0x0A>",
    "<|",
    "|>",
    "/",
    "//",
    "\\",
    "{",
    "}",
    "()",
    "[]",
    "▁the",
    "_",
]


def texts(original, count=2000, most=13):
    """At least `count` texts; those of special tokens too, of whichever kind of tokenizer it is."""
    draw = random.Random(20240501)
    if hasattr(original, "get_piece_size"):
        vocab = [original.id_to_piece(i) for i in range(original.get_piece_size())]
        special = []
    else:
        vocab = [original.id_to_token(i) or "" for i in range(original.get_vocab_size())]
        special = [t.content for t in original.get_added_tokens_decoder().values()]
    special = special[:20] + special[-20:]
    out = (
        ["", " ", "  ", "\n", "a", " a", "a ", " a ", "\ta"]
        + SAMPLES
        + [" " + s for s in SAMPLES]
        + [s + "\n" for s in SAMPLES]
        + PARTS
    )
    out += (
        special
        + [a + b for a in special[:12] for b in ("x", " x", "\n x", "  ")]
        + ["x" + a for a in special]
        + ["x \n" + a for a in special]
    )
    out.append("".join(SAMPLES) * (3 if count >= 2000 else 1))  # long enough for what is remembered of words
    out.append("\n".join(s[::-1] for s in SAMPLES))
    pools = [PARTS, special or PARTS, vocab, SAMPLES]
    while len(out) < count:
        pieces = []
        for _ in range(draw.randrange(1, most + 1)):
            kind = draw.random()
            if kind < 0.45:
                pieces.append(draw.choice(PARTS))
            elif kind < 0.6:
                pieces.append(draw.choice(pools[1]))
            elif kind < 0.75:
                pieces.append(draw.choice(vocab).replace("\u2581", " "))
            elif kind < 0.9:
                sample = draw.choice(SAMPLES)
                at = draw.randrange(len(sample))
                pieces.append(sample[at : at + draw.randrange(1, 25)])
            else:
                pieces.append(
                    chr(
                        draw.choice(
                            [
                                draw.randrange(0x20, 0x2000),
                                draw.randrange(0x2000, 0xD800),
                                draw.randrange(0x10000, 0x20000),
                            ]
                        )
                    )
                )
        out.append("".join(pieces))
    return out
