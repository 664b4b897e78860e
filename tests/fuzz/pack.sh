#!/usr/bin/env bash
# Put the fuzz programs, seeds, dictionaries and the libraries that a bare machine lacks into one folder of a few MB, to run on another machine beside
# its other work:
#   make fuzz && tests/fuzz/pack.sh FOLDER [TARGET...]        then there:
#   FOLDER/run.sh SECONDS [JOBS [EXECUTIONS]]     unpack to /tmp/fuzz and start in the background, at the lowest priority
#   FOLDER/run.sh collect OUT                     stop it; counts, logs and what was found go to OUT/fuzz.tar
set -eu
cd "$(dirname "$0")/../.."
to=$(realpath -m "$1")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$to" "$work/bin" "$work/lib"
cp -r tests/fuzz/corpus tests/fuzz/dict tests/fuzz/flags tests/fuzz/long.sh recipes "$work/"
if [ $# -eq 0 ]; then for f in tests/fuzz/fuzz_*.c; do f=${f##*/fuzz_}; set -- "$@" "${f%.c}"; done; fi
for name in "$@"; do
    # Names of functions stay, since crash reports need them; line numbers and types go.
    objcopy --strip-debug "build/fuzz/fuzz_$name" "$work/bin/fuzz_$name"
    ldd "build/fuzz/fuzz_$name" | awk '$3 ~ "^/" { print $3 }'
done | sort -u | grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv|libgcc_s|ld-linux[^/]*)\.so' | while read -r lib; do
    cp -L "$lib" "$work/lib/"
done
strip -g "$work"/lib/*
# The programs share most of their code, so the window must span several.
tar -C "$work" -cf - . | xz -T1 -9 --lzma2=dict=128MiB >"$to/fuzz.tar.xz"
cat >"$to/run.sh" <<'RUN'
#!/usr/bin/env bash
# run.sh SECONDS [JOBS [EXECUTIONS]]; run.sh collect OUT: see tests/fuzz/pack.sh.
here=$(cd "$(dirname "$0")" && pwd)
at=/tmp/fuzz
if [ "$1" = collect ]; then
    kill -USR1 -- "-$(cat $at/group)"
    for _ in $(seq 20); do kill -0 -- "-$(cat $at/group)" 2>/dev/null || break; sleep 0.5; done
    mkdir -p "$2"
    cd $at/out && tar -cf "$2/fuzz.tar" state $(ls -d -- *.log *.found 2>/dev/null)
    cat state/* | awk '{ d += $1; s += $2; c += $3 } END { printf "fuzz: %d executions, %d core seconds, %d crashes\n", d, s, c }'
    exit
fi
mkdir -p $at && [ -d $at/bin ] || tar -C $at -xJf "$here/fuzz.tar.xz" || python3 -c "import tarfile; tarfile.open('$here/fuzz.tar.xz').extractall('$at')" || exit 1
export LD_LIBRARY_PATH=$at/lib FUZZ_BIN=$at/bin FUZZ_OUT=$at/out FUZZ_SECONDS=$1 FUZZ_JOBS=${2:-14}
cd $at || exit 1
for f in bin/fuzz_*; do "$f" -runs=1 >/tmp/fuzz/start.log 2>&1 || { echo "$f does not run:"; head -5 /tmp/fuzz/start.log; }; done
setsid nohup nice -n 19 ./long.sh "${3:-10000000}" >/tmp/fuzz/long.log 2>&1 &
echo $! >/tmp/fuzz/group
RUN
chmod +x "$to/run.sh"
du -sh "$to"
