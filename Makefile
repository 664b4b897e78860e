# Lateen: one Makefile. Modes: MODE=release (default) debug asan ubsan tsan; each has its own build folder.
#   make            build/lateen, build/liblateen.a
#   make test       everything that needs no GPU; ends with "N passed, N failed"
#   make test-long  tests that take hours (tests/long): whole suites under sanitizers, long fuzz, mutations; the same closing line
#   make run        install missing packages, build, and train the demo model
#   make install    PREFIX=/usr/local DESTDIR=
#   make format     clang-format in place;  make lint: include order, formatting
# New .c files under src/ are found automatically. src/kernels/cpu/isa/*.c are compiled once for each instruction set.

# Use all cores by default (make -j1 for one).
ifeq (,$(filter -j%,$(MAKEFLAGS)))
MAKEFLAGS += -j$(shell nproc)
endif

MODE    ?= release
CC      ?= cc
PREFIX  ?= /usr/local
VERSION := $(shell cat VERSION)
OUT     := $(if $(filter release,$(MODE)),build,build/$(MODE))

WARN  := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror
LIBS  := jansson libpcre2-8 yaml-0.1 libzstd zlib libxxhash hwloc libevent libevent_pthreads libevent_openssl openssl libcrypto
# Libraries that are opened at run time; their headers are needed.
OPENED := libcurl
# pkg-config is asked once, not for every object.
LIB_CFLAGS := $(shell pkg-config --cflags $(LIBS) $(OPENED) 2>/dev/null)
LIB_LINKED := $(shell pkg-config --libs $(LIBS) 2>/dev/null)
CPPFLAGS += -D_GNU_SOURCE -DLT_VERSION='"$(VERSION)"' -Iinclude -Isrc $(LIB_CFLAGS)
CFLAGS_release := -O3 -g1 -fno-math-errno -fno-trapping-math
CFLAGS_debug   := -O0 -g
CFLAGS_asan    := -Og -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
CFLAGS_ubsan   := -Og -g1 -fsanitize=undefined -fno-sanitize-recover=all
CFLAGS_tsan    := -O1 -g1 -fsanitize=thread
CFLAGS  += -std=c17 -fopenmp $(WARN) -MMD -MP $(CFLAGS_$(MODE))
LDFLAGS += -fopenmp $(filter -fsanitize=%,$(CFLAGS_$(MODE)))
# Tests of the engine spend 85 % of their time under AddressSanitizer in these two, and a third less if they are optimised; all else compiles faster than it would run.
$(OUT)/src/kernels/cpu/isa/gemm.%.o $(OUT)/src/kernels/cpu/isa/paged.%.o: CFLAGS_asan += -O2 -fno-math-errno -fno-trapping-math
# GCC's ThreadSanitizer with clang's run time if it is installed: GCC 12 ships an older one, which takes twice as long for the same checks.
ifeq ($(MODE),tsan)
TSAN_RUNTIME := $(wildcard $(shell clang -print-file-name=libclang_rt.tsan-$(shell uname -m).a 2>/dev/null))
ifneq (,$(TSAN_RUNTIME))
# It replaces GCC's library, without the object that GCC links by itself.
$(shell mkdir -p $(OUT)/clang && cp -u $(TSAN_RUNTIME) $(OUT)/clang/libtsan.a && $(AR) d $(OUT)/clang/libtsan.a tsan_preinit.cpp.o)
LDFLAGS += -static-libtsan -L$(OUT)/clang -Wl,--dynamic-list=$(TSAN_RUNTIME).syms
endif
endif
LDLIBS  += $(LIB_LINKED) -ldnnl -lm -ldl -lpthread

# Programs of tests are many, and each is linked with the whole library: by the fastest linker that is installed (BFD's takes four times as long as lld),
# without optimisation, since what they test is in the library.
TEST_LINKER  := $(firstword $(foreach l,lld gold,$(if $(shell command -v ld.$l),-fuse-ld=$l)))
TEST_CFLAGS   = $(patsubst -O3,-O0,$(CFLAGS))
# Half of this program's time is its own sums, which it compares with those of the library.
$(OUT)/tests/unit/comm/test_verbs: TEST_CFLAGS = $(CFLAGS)

# Instruction sets for src/kernels/cpu/isa: one source, one object and one symbol suffix each. A multiply and an add there may become one
# fused instruction (-std=c17 alone would forbid it).
ISAS := portable avx2 avx512
# Sources that must equal a definition bit for bit, compiled without fused instructions.
ISA_EXACT := quant cached
ISA_portable :=
ISA_avx2     := -mavx2 -mfma -mf16c
ISA_avx512   := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c -mprefer-vector-width=512
# Sources that run only on AVX-512 CPUs with BF16 dot products (tests/suites/22_instructions.sh checks that no other object has one).
ISA_BF16 := gemm_pairs probe_bf16

SRC     := $(sort $(shell find src -name '*.c' -not -path 'src/cli/*' -not -path 'src/kernels/cpu/isa/*'))
SRC_ISA := $(sort $(wildcard src/kernels/cpu/isa/*.c))
SRC_CLI := $(sort $(shell find src/cli -name '*.c'))
OBJ     := $(SRC:%.c=$(OUT)/%.o) $(foreach isa,$(ISAS),$(SRC_ISA:%.c=$(OUT)/%.$(isa).o))
# Objects (src/%.o) that are taken from the release build, without this mode's instrumentation (tests/suites/60_sanitizers.sh).
BORROW  ?=
borrowed = $(foreach o,$1,$(if $(filter $(BORROW),$(o:$(OUT)/%=%)),$(o:$(OUT)/%=build/%),$(o)))
OBJ     := $(call borrowed,$(OBJ))
OBJ_CLI := $(SRC_CLI:%.c=$(OUT)/%.o)
UNIT    := $(patsubst tests/%.c,$(OUT)/tests/%,$(sort $(shell find tests/unit -name 'test_*.c')))
EXAMPLES := $(patsubst examples/%.c,$(OUT)/examples/%,$(sort $(wildcard examples/*.c)))

.PHONY: all lib unit-programs test test-long check unit run docs install clean format lint found
all: found $(OUT)/lateen
lib: $(OUT)/liblateen.a

# Rules of rooms that generate something (kernel text to embed, fuzz targets, ...).
-include $(sort $(wildcard src/*/rules.mk src/*/*/rules.mk tests/*/rules.mk))
OBJ_CLI := $(call borrowed,$(OBJ_CLI))

found:
	@pkg-config --exists $(LIBS) $(OPENED) || { echo "missing libraries; on Debian: apt-get install $$(tr '\n' ' ' < packages.txt)"; exit 1; }
	@echo "lateen $(VERSION): $(MODE), $$($(CC) --version | head -1), libraries: oneDNN $(LIBS)"

$(OUT)/lateen: $(OBJ_CLI) $(OUT)/liblateen.a
	$(CC) $(LDFLAGS) $(if $(filter-out release,$(MODE)),$(TEST_LINKER)) -o $@ $^ $(LDLIBS)

$(OUT)/liblateen.a: $(OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(OUT)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

define isa_rule
$(OUT)/src/kernels/cpu/isa/%.$(1).o: src/kernels/cpu/isa/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) -DLT_ISA=$(1) -DLT_ISA_$(1)=1 $$(CFLAGS) -ffp-contract=$$(if $$(filter $$*,$$(ISA_EXACT)),off,fast) $$(ISA_$(1)) \
	    $$(if $$(filter avx512,$(1)),$$(if $$(filter $$*,$$(ISA_BF16)),-mavx512bf16)) -c -o $$@ $$<
endef
$(foreach isa,$(ISAS),$(eval $(call isa_rule,$(isa))))

$(OUT)/tests/%: tests/%.c $(OUT)/liblateen.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -Itests $(TEST_CFLAGS) $(LDFLAGS) $(TEST_LINKER) -o $@ $< $(OUT)/liblateen.a -lcmocka $(LDLIBS)

# Tests of verbs call them in their own process.
$(OUT)/libcli.a: $(filter-out $(OUT)/src/cli/main.o,$(OBJ_CLI))
	@rm -f $@
	$(AR) rcs $@ $^

$(OUT)/tests/unit/cli/%: tests/unit/cli/%.c $(OUT)/libcli.a $(OUT)/liblateen.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -Itests $(TEST_CFLAGS) $(LDFLAGS) $(TEST_LINKER) -o $@ $< $(OUT)/libcli.a $(OUT)/liblateen.a -lcmocka $(LDLIBS)

$(OUT)/examples/%: examples/%.c $(OUT)/liblateen.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(TEST_CFLAGS) $(LDFLAGS) $(TEST_LINKER) -o $@ $< $(OUT)/liblateen.a $(LDLIBS)

unit-programs: all $(UNIT) $(EXAMPLES)

unit: unit-programs
	BUILD=$(OUT) tests/run.sh unit

test: all
	tests/run.sh all

test-long: all
	tests/run.sh long

run:
	tools/run.sh

# The documentation as a site: $(SITE)/index.html (docs/adr/0006).
SITE ?= build/site
docs:
	@command -v mkdocs >/dev/null || { echo "make docs needs mkdocs; on Debian: apt-get install mkdocs"; exit 1; }
	@python3 tools/make_site.py $(SITE)-src
	@sed 's|^docs_dir:.*|docs_dir: $(SITE)-src|' mkdocs.yml > $(SITE)-src.yml && mv $(SITE)-src.yml .mkdocs-$(notdir $(SITE)).yml
	@mkdocs build -q --strict -f .mkdocs-$(notdir $(SITE)).yml -d $(abspath $(SITE)); status=$$?; rm -f .mkdocs-$(notdir $(SITE)).yml; exit $$status
	@python3 tools/check_links.py --site $(SITE)
	@echo "$(SITE)/index.html"

install: all $(OUT)/lateen.pc $(OUT)/lateen.1
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include/lateen
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/lateen
	install -m 755 $(OUT)/lateen $(DESTDIR)$(PREFIX)/bin/
	install -m 644 $(OUT)/liblateen.a $(DESTDIR)$(PREFIX)/lib/
	install -m 644 include/lateen/*.h $(DESTDIR)$(PREFIX)/include/lateen/
	install -m 644 $(OUT)/lateen.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig/
	install -m 644 $(OUT)/lateen.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 644 tools/completion.sh $(DESTDIR)$(PREFIX)/share/bash-completion/completions/lateen
	cp -r recipes models $(DESTDIR)$(PREFIX)/share/lateen/

$(OUT)/lateen.pc: VERSION
	@printf 'prefix=%s\nName: lateen\nDescription: The whole life of a language model in one C library\nVersion: %s\nRequires.private: %s\nCflags: -I$${prefix}/include\nLibs: -L$${prefix}/lib -llateen\nLibs.private: -ldnnl -lm -ldl -lpthread -lgomp\n' \
		'$(PREFIX)' '$(VERSION)' '$(LIBS)' > $@

$(OUT)/lateen.1: $(OUT)/lateen tools/manpage.sh
	tools/manpage.sh $(OUT)/lateen > $@

format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' | grep -v unicode_tables)

lint:
	tests/lint.sh

clean:
	rm -rf build

-include $(OBJ:.o=.d) $(OBJ_CLI:.o=.d) $(UNIT:%=%.d)
