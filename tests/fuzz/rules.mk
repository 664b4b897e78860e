# Fuzz targets: every tests/fuzz/fuzz_*.c, with libFuzzer, ASan and UBSan (clang).
#   make fuzz              build them all: build/fuzz/fuzz_NAME; seeds, where there are any, in tests/fuzz/corpus/NAME
#   make fuzz-smoke        run each FUZZ_SECONDS (default 5) seconds
# The library is built once more for it in build/fuzz. OpenMP loops run on one thread there.
#   FUZZ_MODE=fuzz-quick   in build/fuzz-quick without optimisation: built in a quarter of the time, for runs of a second (tests/suites/60_sanitizers.sh).
#                          FUZZ_MORE names unit tests of that folder to build too; they share its objects.
FUZZ_CC      ?= $(if $(shell command -v ccache),ccache )clang
FUZZ_SECONDS ?= 5
FUZZ_MODE    ?= fuzz
FUZZ_MORE    ?=
FUZZ_NAMES   := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))

ifneq (,$(filter fuzz fuzz-quick,$(MODE)))
# Only omp.h of gcc: its other headers do not suit clang.
OMP_INCLUDE := $(OUT)/include
$(shell mkdir -p $(OMP_INCLUDE) && cp "$$(gcc -print-file-name=include/omp.h)" $(OMP_INCLUDE)/)
# Without trace-cmp, which would take half of the time: words and magic numbers come from the
# dictionaries and from the hooks of memcmp and strcmp. The macro by which GCC announces
# AddressSanitizer, which tests read, is defined for clang, too.
SMALL := -DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
override CFLAGS  := -std=c17 $(if $(filter fuzz,$(MODE)),-O2 $(SMALL),-O0) -g1 -w -MMD -MP -D__SANITIZE_ADDRESS__=1 -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined \
                    -fno-sanitize-coverage=trace-cmp -fno-sanitize-recover=undefined -idirafter $(OMP_INCLUDE)
override LDFLAGS := -fsanitize=address,undefined
OMP_LIBRARY := $(shell gcc -print-file-name=libgomp.so)
LDLIBS += $(OMP_LIBRARY)
FUZZ_OBJ := $(FUZZ_NAMES:%=$(OUT)/tests/fuzz/fuzz_%.o)
# Kernels are not parsers, and those of the CPU use builtins that clang lacks, so they come from
# the release build, without instrumentation. So does everything that the targets do not link:
# LINKED names the members of the release build's library that they need.
ifneq (,$(filter fuzz-programs,$(MAKECMDGOALS)))
LINKED := $(shell ld -r -z muldefs -t -t -o $(OUT)/all.o $(FUZZ_OBJ) build/liblateen.a | sed -n 's/^(build.liblateen.a)//p')
$(if $(LINKED),,$(error the linker does not say what the fuzz targets pull in))
endif
# The objects of the quick build are those of the rooms that read foreign input, and of serve
# without the engine.
FUZZ_ROOMS := $(if $(filter fuzz-quick,$(MODE)),src/base/% src/data/% src/platform/% $(addprefix src/serve/,api/% grammar/% http/% page_% pages% parse% stop_scan%),$(addsuffix /%,$(filter-out src/kernels,$(wildcard src/*))))
OBJ := $(foreach o,$(OBJ),$(if $(and $(filter $(FUZZ_ROOMS),$(o:$(OUT)/%=%)),$(filter $(LINKED),$(notdir $o))),$o,$(o:$(OUT)/%=build/%)))
BORROW := src/cli/%.o tests/ops/%.o
# Sources with small buffers and limits for fuzz targets, but not for unit tests, are compiled
# twice by the quick build.
SMALL_OBJ := $(if $(filter fuzz-quick,$(MODE)),$(patsubst %.c,$(OUT)/%.small.o,$(shell grep -lE 'FUZZING_BUILD_MODE|LT_VOCAB_MAX|LT_NORM_BYTES_MAX' $(SRC))))

$(OUT)/%.small.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(SMALL) -c -o $@ $<

$(OUT)/libsmall.a: $(SMALL_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(OUT)/fuzz_%: $(OUT)/tests/fuzz/fuzz_%.o $(OUT)/libsmall.a $(OUT)/liblateen.a
	$(CC) $(LDFLAGS) $(TEST_LINKER) -fsanitize=fuzzer -o $@ $^ -Wl,--as-needed $(LDLIBS)

.PHONY: fuzz-objects fuzz-programs
fuzz-objects: $(FUZZ_OBJ)
-include $(FUZZ_OBJ:.o=.d) $(SMALL_OBJ:.o=.d)
fuzz-programs: $(FUZZ_NAMES:%=$(OUT)/fuzz_%)
endif

.PHONY: fuzz fuzz-smoke
fuzz: lib
	$(MAKE) --no-print-directory MODE=$(FUZZ_MODE) CC="$(FUZZ_CC)" fuzz-objects
	$(MAKE) --no-print-directory MODE=$(FUZZ_MODE) CC="$(FUZZ_CC)" fuzz-programs $(FUZZ_MORE)

fuzz-smoke: fuzz
	@for name in $(FUZZ_NAMES); do FUZZ_MODE=$(FUZZ_MODE) tests/fuzz/smoke.sh $$name $(FUZZ_SECONDS) || exit 1; done
