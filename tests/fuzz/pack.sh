#!/usr/bin/env bash
# Put the fuzz programs, seeds, dictionaries and the libraries that a bare machine lacks into one folder, to run elsewhere:
#   make fuzz && tests/fuzz/pack.sh FOLDER      then there: FOLDER/run.sh [N]
set -eu
cd "$(dirname "$0")/../.."
to=$1
mkdir -p "$to/bin" "$to/lib"
cp -r tests/fuzz/corpus tests/fuzz/dict tests/fuzz/long.sh "$to/"
cp -r recipes "$to/"
for f in build/fuzz/fuzz_*; do
    case $f in *.d) continue ;; esac
    # Names of functions stay (a crash report needs them), lines and types do not.
    objcopy --strip-debug "$f" "$to/bin/${f##*/}"
    ldd "$f" | awk '$3 ~ "^/" { print $3 }'
done | sort -u | grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv|libgcc_s|ld-linux[^/]*)\.so' | while read -r lib; do
    cp -L "$lib" "$to/lib/"
done
cat >"$to/run.sh" <<'RUN'
#!/usr/bin/env bash
# run.sh [N] [TARGET...]: N executions of every target; see long.sh.
here=$(cd "$(dirname "$0")" && pwd)
cd "$here" || exit 1
export LD_LIBRARY_PATH=$here/lib FUZZ_BIN=$here/bin FUZZ_OUT=${FUZZ_OUT:-$here/out}
exec ./long.sh "$@"
RUN
chmod +x "$to/run.sh"
du -sh "$to"
