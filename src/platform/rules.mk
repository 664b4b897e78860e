$(OUT)/src/platform/cluster/page.o: src/train/report/report_head.html src/platform/cluster/page.html
$(OUT)/src/platform/cluster/job.o: src/platform/cluster/job.sh
