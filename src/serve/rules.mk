$(OUT)/src/serve/web.o: src/serve/chat.html src/serve/status.html
