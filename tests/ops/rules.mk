# The op cases are part of the command line program too (`lateen doctor --ops` reads them); optest adds the checking modes.
OPS_CASES := $(filter-out tests/ops/optest.c tests/ops/check.c tests/ops/grad.c tests/ops/golden.c tests/ops/world.c,$(sort $(wildcard tests/ops/*.c)))
OPS_TEST  := $(sort $(wildcard tests/ops/*.c))
$(OUT)/tests/ops/%.o: CPPFLAGS += -Itests
$(OUT)/src/cli/%.o: CPPFLAGS += -Itests
OBJ_CLI += $(OPS_CASES:%.c=$(OUT)/%.o)

$(OUT)/optest: $(OPS_TEST:%.c=$(OUT)/%.o) $(OUT)/liblateen.a
	$(CC) $(LDFLAGS) $(TEST_LINKER) -o $@ $^ $(LDLIBS)
-include $(OPS_TEST:%.c=$(OUT)/%.d)
