#!/usr/bin/env python3
"""Writes images, Hugging Face folders of ViT with random weights, and what Pillow and transformers make of them.

    pip install torch transformers pillow
    tests/reference/make_image_goldens.py tests/testdata_images

files/ has small PNG and JPEG images; pixels.json, by file, the size and the bytes of Pillow's convert("RGB"), and by
case what Image.resize makes of a made-up image (`made`, which tests/model/image_test.cc makes too). <case>/1/ is a
folder as save_pretrained leaves it, and <case>/golden.json has, in float64: `rows`, patches of pixel values, and their
`logits` or `embedding`; and by file the float32 pixel `values` of ViTImageProcessorPil and what the model says of them.
"""

import io
import json
import struct
import zlib

import fixture_folders
import numpy as np
import torch
import transformers
from make_hugging_face import LABELLED
from PIL import Image

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
BICUBIC = {"resample": 3, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}

# Name: class, configuration, dtype of the file, and what differs from the processor's defaults.
CASES = {
    "vit_classes": ("ViTForImageClassification", {**SIZES, **LABELLED, "image_size": [12, 8], "patch_size": 4}, "float16",
                    BICUBIC),
    "vit_regression": ("ViTForImageClassification",
                       {**SIZES, "num_labels": 1, "image_size": 8, "patch_size": [2, 4], "hidden_act": "gelu_new"},
                       "bfloat16", {"do_normalize": False}),
    "vit_model": ("ViTModel", {**SIZES, "image_size": 10, "patch_size": 4, "qkv_bias": False, "hidden_act": "relu",
                               "pooler_output_size": 24}, "bfloat16", {}),
    "vit_features": ("ViTForImageClassification", {**SIZES, **LABELLED, "image_size": 6, "patch_size": 3,
                                                   "num_channels": 5}, "float16", None),
}
# From width, height to width, height, by filter.
RESIZES = [(7, 5, 7, 5), (7, 5, 12, 9), (31, 17, 6, 7), (1, 1, 4, 3), (2, 40, 5, 5), (300, 203, 9, 8), (9, 6, 9, 4),
           (6, 9, 4, 9), (5, 4, 33, 2)]


def made(width, height):
    """Bytes that change from pixel to pixel, with edges, where a filter overshoots."""
    i = np.arange(width * height * 3, dtype=np.int64)
    values = (i * i * 7 + i * 31) % 251
    return np.where(i // 9 % 5 == 0, 255, np.where(i // 7 % 6 == 0, 0, values)).astype(np.uint8).reshape(height, width, 3)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, colour, rows, *more):
    """A PNG of raw rows, for what Pillow does not write."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(more) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def files():
    """Name: bytes."""
    def saved(image, form, **options):
        out = io.BytesIO()
        image.save(out, form, **options)
        return out.getvalue()

    rgb = Image.fromarray(made(13, 9))
    smooth = rgb.resize((37, 29), Image.Resampling.BICUBIC)
    gray = rgb.convert("L")
    alpha = Image.merge("RGBA", (*rgb.split(), gray))
    random = np.random.default_rng(1)
    wide = random.integers(0, 256, (4, 5 * 3 * 2), dtype=np.uint8)  # 16 bits a channel
    exif = Image.Exif()
    exif[0x0112] = 6  # turned: Image.open does not look at it
    cmyk = saved(smooth.convert("CMYK"), "JPEG")
    palette = chunk(b"PLTE", bytes(random.integers(0, 256, 9, dtype=np.uint8)))
    return {
        "rgb.png": saved(rgb, "PNG"),
        "photo.png": saved(smooth, "PNG"),
        "alpha.png": saved(alpha, "PNG"),
        "gray.png": saved(gray, "PNG"),
        "gray_alpha.png": saved(Image.merge("LA", (gray, gray.rotate(180))), "PNG"),
        "bits.png": saved(gray.convert("1"), "PNG"),
        "palette.png": saved(rgb.quantize(11), "PNG"),
        "palette_transparent.png": saved(rgb.quantize(40), "PNG", transparency=3),
        "gray_2_bits.png": png(5, 2, 2, 0, [b"\x1b\xc0", b"\xe4\x40"]),
        "gray_4_bits.png": png(3, 2, 4, 0, [b"\x0f\x70", b"\xa3\x90"]),
        "palette_beyond.png": png(4, 2, 4, 3, [b"\x01\x2f", b"\x93\x10"], palette),  # colours that are not there
        "rgb_16_bits.png": png(5, 4, 16, 2, [row.tobytes() for row in wide]),
        "transparent_colour.png": png(2, 1, 8, 2, [bytes([1, 2, 3, 200, 201, 202])],
                                      chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3))),
        "gamma.png": png(2, 1, 8, 2, [bytes([9, 90, 180, 200, 100, 50])], chunk(b"gAMA", struct.pack(">I", 20000))),
        "rgba_16_bits.png": png(3, 4, 16, 6, [row[:24].tobytes() for row in wide]),
        "gray_alpha_16_bits.png": png(5, 4, 16, 4, [row[:20].tobytes() for row in wide]),
        "interlaced.png": interlaced(11, 9, 8, 0),
        "interlaced_palette.png": interlaced(7, 6, 4, 3, palette),
        "rgb.jpg": saved(smooth, "JPEG", quality=90, subsampling=0),
        "half.jpg": saved(smooth, "JPEG", quality=70, subsampling=2),
        "plain_rgb.jpg": saved(smooth, "JPEG", keep_rgb=True),  # no luma and chroma
        "progressive.jpg": saved(smooth, "JPEG", quality=80, progressive=True),
        "gray.jpg": saved(smooth.convert("L"), "JPEG"),
        "cmyk.jpg": cmyk,
        "ycck.jpg": cmyk.replace(b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\2"),  # read as if it were that
        "turned.jpg": saved(smooth, "JPEG", exif=exif),
    }


def interlaced(width, height, depth, colour, *more):
    """Adam7, one channel of 8 bits, or of 4, which are the low ones."""
    image = np.asarray(Image.fromarray(made(width, height)).convert("L"))
    rows = []
    for top, left, down, right in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
                                   (1, 0, 2, 1)):
        for row in image[top::down, left::right]:
            if depth == 4:
                low = np.append(row & 15, np.uint8(0))  # a last half byte is padded
                row = low[0:row.size:2] << 4 | low[1:row.size + 1:2]
            rows += [b"\0" + row.tobytes()] if row.size else []
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 1)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(more)
            + chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b""))


def open_rgb(data):
    return Image.open(io.BytesIO(data)).convert("RGB")


def write_pixels(root):
    (root / "files").mkdir(parents=True, exist_ok=True)
    pixels = {"files": {}, "resized": []}
    for name, data in files().items():
        (root / "files" / name).write_bytes(data)
        image = open_rgb(data)
        pixels["files"][name] = {"width": image.width, "height": image.height, "hex": image.tobytes().hex()}
    for number, kind in ((2, Image.Resampling.BILINEAR), (3, Image.Resampling.BICUBIC)):
        for width, height, to_width, to_height in RESIZES:
            # In two steps, which have the order of Pillow before 13 in every version: rows, then columns.
            resized = Image.fromarray(made(width, height)).resize((to_width, height), kind)
            resized = resized.resize((to_width, to_height), kind)
            pixels["resized"].append({"from": [width, height], "to": [to_width, to_height], "resample": number,
                                      "hex": resized.tobytes().hex()})
    (root / "pixels.json").write_text(json.dumps(pixels, indent=0) + "\n")


def patch_rows(values, config):
    """[channels, height, width] as rows of features: one patch a row, channel by channel."""
    pair = lambda value: value if isinstance(value, (list, tuple)) else (value, value)  # noqa: E731
    (height, width), (down, right) = pair(config.image_size), pair(config.patch_size)
    return [values[:, top:top + down, left:left + right].reshape(-1).tolist()
            for top in range(0, height // down * down, down) for left in range(0, width // right * right, right)]


def answer(model, values):
    with torch.no_grad():
        output = model(pixel_values=values[None].double())
    if "logits" in output:
        return {"logits": output.logits[0].tolist()}
    return {"embedding": output.pooler_output[0].tolist()}


def write_case(root, name, seed):
    kind, sizes, dtype, options = CASES[name]
    model = fixture_folders.new_model(kind, sizes, dtype, seed)
    folder = fixture_folders.empty_folder(root, name)
    model.save_pretrained(folder)
    config = model.config
    size = config.image_size if isinstance(config.image_size, (list, tuple)) else [config.image_size] * 2
    model = model.double().eval()
    golden = {"inputs": [], "files": {}}
    for _ in range(2):
        values = torch.randn(config.num_channels, *size).float()
        golden["inputs"].append({"rows": patch_rows(values, config), **answer(model, values)})
    if options is not None:
        processor = transformers.ViTImageProcessorPil(size={"height": size[0], "width": size[1]}, **options)
        processor.save_pretrained(folder)
        for file in ("photo.png", "gray.png", "rgb.png"):
            image = open_rgb((root / "files" / file).read_bytes())
            values = torch.from_numpy(processor(image, return_tensors="np")["pixel_values"][0])
            golden["files"][file] = {"values": [float(value) for row in patch_rows(values, config) for value in row],
                                     **answer(model, values)}
    fixture_folders.write_golden(root, name, golden)


if __name__ == "__main__":
    fixture_folders.main(__doc__, CASES, write_case, before=write_pixels)
