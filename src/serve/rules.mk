$(OUT)/src/serve/web.o: $(wildcard src/serve/pages/*)
