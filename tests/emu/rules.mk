# The emulated GPU: libcuda.so.1, libnvrtc.so.12 and libnccl.so.2 for machines that have none; tests/emu/run COMMAND uses them (README.md here).
EMU_OUT   := $(OUT)/emu
EMU_FLAGS := -O2 -march=native -ffp-contract=off -fPIC -ftls-model=initial-exec -fno-semantic-interposition -Itests/emu -DEMU_DIR='"$(CURDIR)/tests/emu"'
# Options for kernels, and for device.h, which is compiled once for all of them.
EMU_KERNEL_FLAGS := -std=c++17 -O1 -g0 -w -fPIC -fno-exceptions -fno-rtti -ffp-contract=off -fno-strict-aliasing -fno-gnu-unique -fvisibility=hidden -march=native
EMU_HEADS := $(wildcard tests/emu/*.h) src/kernels/cuda/driver.h

.PHONY: emu
emu: $(EMU_OUT)/libcuda.so.1 $(EMU_OUT)/libnvrtc.so.12 $(EMU_OUT)/libnccl.so.2 $(EMU_OUT)/device.h.gch

$(EMU_OUT)/device.h.gch: $(EMU_HEADS)
	@mkdir -p $(@D)
	g++ -x c++-header $(EMU_KERNEL_FLAGS) -Itests/emu -o $@ tests/emu/device.h

$(EMU_OUT)/libcuda.so.1: $(addprefix tests/emu/,block.c copies.c driver.c fiber.c launch.c peers.c products.c streams.c words.c) $(EMU_HEADS)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -std=c17 $(WARN) -Wno-pedantic $(EMU_FLAGS) -O3 -shared -Wl,-soname,libcuda.so.1 -o $@ $(filter %.c,$^) -lpthread -ldl -lm

$(EMU_OUT)/libnvrtc.so.12: tests/emu/nvrtc.c tests/emu/rewrite.c $(EMU_HEADS) tests/emu/rules.mk
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -std=c17 $(WARN) -Wno-pedantic $(EMU_FLAGS) -DEMU_KERNEL_FLAGS='"$(EMU_KERNEL_FLAGS)"' -shared -Wl,-soname,libnvrtc.so.12 -o $@ $(filter %.c,$^) -ldl

$(EMU_OUT)/libnccl.so.2: tests/emu/nccl.c tests/emu/words.c $(EMU_HEADS) src/comm/nccl_library.h
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -std=c17 $(WARN) -Wno-pedantic $(EMU_FLAGS) -ftls-model=global-dynamic -shared -Wl,-soname,libnccl.so.2 -o $@ $(filter %.c,$^) -lpthread -ldl -lm

$(EMU_OUT)/faults: tests/emu/faults.c $(OUT)/liblateen.a
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $< $(OUT)/liblateen.a $(LDLIBS)
