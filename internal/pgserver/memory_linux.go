package pgserver

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// memoryFolder returns a folder in memory with at least room bytes to spare,
// in it and in the machine; "" if there is none. Making and dropping a database
// creates and removes some 300 files, which takes a tenth of the time there.
func memoryFolder(room uint64) string {
	const dir, tmpfs = "/dev/shm", 0x01021994
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil || st.Type != tmpfs || st.Bavail*uint64(st.Bsize) < room { //nolint:gosec // a block's size is positive
		return ""
	}
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && fields[0] == "MemAvailable:" {
			kib, err := strconv.ParseUint(fields[1], 10, 64)
			if err == nil && kib<<10 >= room {
				return dir
			}
		}
	}
	return ""
}
