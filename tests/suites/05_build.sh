# Builds all programs that the suites run, before all others, so that these can run side by side.
# The builds run side by side, too, because each leaves a core idle while it lists, archives or
# links.
. tests/sanitized.sh
emulation=$(command -v g++ >/dev/null && echo emu build/emu/faults)
beside -t 1200 "build tests" bash -c "make -s -j\$(nproc) unit-programs build/optest $emulation && printf 'ok 1 - built\n1..1\n'"
# Fuzz targets and the unit tests under AddressSanitizer share objects (tests/fuzz/rules.mk).
if command -v clang >/dev/null; then
    beside -t 1200 "build fuzz targets, and tests for asan" bash -c "make -s -j\$(nproc) fuzz FUZZ_MODE=fuzz-quick \
        FUZZ_MORE='build/fuzz-quick/lateen $(sanitized_names "$smoke_strangers" | sed 's|^|build/fuzz-quick/|' | tr '\n' ' ')' && printf 'ok 1 - built\n1..1\n'"
fi
sanitized_build tsan "$smoke_threads" "$smoke_lent"
beside_done
# For 36_emu.sh and 38_emu_programs.sh: make takes half a CPU second to find out that nothing
# needs building.
export LATEEN_EMU_MADE=1
