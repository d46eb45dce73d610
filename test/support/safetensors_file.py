"""A small reader and writer of safetensors files, for tests: F32 and I32 alone, independent of the C++ one."""
import array
import json
import os
import struct

_CODES = {"F32": "f", "I32": "i"}


class Tensor:
    """values: a flat array in row-major order."""

    def __init__(self, dtype, shape, values):
        self.dtype, self.shape, self.values = dtype, list(shape), values

    def row(self, *index):
        """The innermost row at the given outer indices."""
        width = self.shape[-1]
        flat = 0
        for i, n in zip(index, self.shape[:-1]):
            assert 0 <= i < n
            flat = flat * n + i
        return self.values[flat * width:(flat + 1) * width]


def read_tensors(path, names=None):
    """Name -> Tensor, of the named ones or of all."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        assert length < os.path.getsize(path)
        header = json.loads(f.read(length))
        tensors = {}
        for name, info in header.items():
            if name == "__metadata__" or (names is not None and name not in names):
                continue
            begin, end = info["data_offsets"]
            f.seek(8 + length + begin)
            values = array.array(_CODES[info["dtype"]])
            values.frombytes(f.read(end - begin))
            tensors[name] = Tensor(info["dtype"], info["shape"], values)
        return tensors


def write_tensors(path, tensors):
    header, offset = {}, 0
    for name, t in tensors.items():
        size = 4 * len(t.values)
        header[name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(array.array(_CODES[t.dtype], t.values).tobytes())
