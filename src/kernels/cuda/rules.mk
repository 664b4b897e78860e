# Kernel text: every .cu, .cuh, .txt and *args.h (read by host and device) below src/kernels/cuda is put into the binary.
# cuda.h, where found, only checks our own declarations of the driver's ABI; CUDA=0 leaves that out.
CUDA_HOME   ?= $(firstword $(wildcard /usr/local/cuda /usr/lib/cuda /usr/lib/nvidia-cuda-toolkit))
CUDA_HEADER := $(firstword $(wildcard $(CUDA_HOME)/include/cuda.h /usr/include/cuda.h))
CUDA        ?= $(if $(CUDA_HEADER),1,0)
ifeq ($(CUDA),1)
$(OUT)/src/kernels/cuda/driver_abi_check.o: CPPFLAGS += -DLT_HAVE_CUDA -isystem $(dir $(CUDA_HEADER))
endif

KERNEL_TEXT := $(sort $(shell find src/kernels/cuda -name '*.cu' -o -name '*.cuh' -o -name '*.txt' -o -name '*args.h'))

$(OUT)/gen/kernel_text.S: $(KERNEL_TEXT) src/kernels/cuda/rules.mk
	@mkdir -p $(@D)
	@{ echo '.section .rodata'; echo '.global lt_kernel_text_begin'; echo 'lt_kernel_text_begin:'; \
	  for f in $(KERNEL_TEXT); do \
	    echo ".asciz \"$${f#src/kernels/cuda/}\""; echo ".incbin \"$$f\""; echo '.byte 0'; \
	  done; echo '.byte 0'; echo '.section .note.GNU-stack,"",%progbits'; } > $@

$(OUT)/gen/kernel_text.o: $(OUT)/gen/kernel_text.S
	$(CC) -c -o $@ $<

OBJ += $(OUT)/gen/kernel_text.o

.PHONY: kernels
kernels: all
	$(OUT)/lateen bench kernels --compile
