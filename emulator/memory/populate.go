package memory

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// populate zero-fills the range in one system call, or by hand on kernels before
// 5.14, which do not know MADV_POPULATE_WRITE.
func populate(b []byte) error {
	var err error = unix.EINTR
	for errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
		err = unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	}
	if errors.Is(err, unix.EINVAL) {
		touch(b)
		return nil
	}
	if err != nil {
		return fmt.Errorf("zero-fill %d bytes: %w", len(b), err)
	}
	return nil
}

// touch writes one byte in each small page.
func touch(b []byte) {
	for i := 0; i < len(b); i += smallPage {
		b[i] = 0
	}
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
