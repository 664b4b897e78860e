$(OUT)/src/serve/api/web.o: $(wildcard src/serve/pages/*)
