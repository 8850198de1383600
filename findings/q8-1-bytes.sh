#!/usr/bin/env bash
# Package gguf 0.19.0 (PyPI) against the ggml inside of llama-cpp-python 0.3.36: the table GGML_QUANT_SIZES, from which readers compute where tensors end, has
# every type of blocks as ggml has it but Q8_1: 40 bytes there, 36 in ggml, whose two factors became halves. No file holds Q8_1 (tokens are multiplied
# in it), so no reader fails; but who checks a table of his own by this one, or sizes buffers by it, is wrong in one row. Ask ggml's structs.
# Seen:  types compared: 22; different: Q8_1 (gguf 40, ggml 36)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gguf==0.19.0
"$folder/venv/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$folder" llama-cpp-python==0.3.36
tar xzf "$folder"/llama_cpp_python-0.3.36.tar.gz -C "$folder" --wildcards '*/ggml/src/ggml-common.h'
header=$(find "$folder" -name ggml-common.h)
{
    echo '#include <stdint.h>'
    echo '#include <stdio.h>'
    echo '#define GGML_COMMON_DECL_C'
    echo "#include \"$header\""
    echo 'int main(void) {'
    for type in Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S IQ1_M IQ4_NL IQ4_XS MXFP4; do
        echo "    printf(\"$type %zu\\n\", sizeof(block_$(echo "$type" | sed 's/^Q/q/; s/^IQ/iq/; s/_XXS/_xxs/; s/_XS/_xs/; s/_S$/_s/; s/_M$/_m/; s/_NL/_nl/; s/MXFP4/mxfp4/')));"
    done
    echo '    return 0; }'
} > "$folder/sizes.c"
cc -o "$folder/sizes" "$folder/sizes.c"
"$folder/sizes" > "$folder/sizes.txt"
"$folder/venv/bin/python" - "$folder/sizes.txt" <<'PY'
import sys

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

rows = [line.split() for line in open(sys.argv[1])]
different = [f"{name} (gguf {bytes_}, ggml {n})" for name, n in rows
             if (bytes_ := GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]) != int(n)]
print(f"types compared: {len(rows)}; different: {', '.join(different)}")
assert different == ["Q8_1 (gguf 40, ggml 36)"]
PY
