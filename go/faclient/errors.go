package faclient

// #include "shim.h"
import "C"

import (
	"fmt"
	"strings"
	"syscall"
)

// Error is what a call of the library returned: a number and a sentence that names the argument, the
// limit or the path. errors.Is(err, syscall.EBUSY) asks for the number.
type Error struct {
	Errno   syscall.Errno
	Message string
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the number.
func (e *Error) Unwrap() error { return e.Errno }

func invalid(format string, arguments ...any) error {
	return &Error{syscall.EINVAL, fmt.Sprintf(format, arguments...)}
}

// failed turns a result of the shim into an error, or nil.
func failed(r C.int, e *C.struct_shim_error) error {
	if r >= 0 {
		return nil
	}
	errno := syscall.Errno(-r)
	message := C.GoString(&e.text[0])
	if message == "" {
		message = errno.Error()
	}
	return &Error{errno, message}
}

// cString returns the text with a zero behind it, for the time of a call; nil for no text.
func cString(text, what string) (*C.char, error) {
	if strings.IndexByte(text, 0) >= 0 {
		return nil, invalid("%s contains a zero byte", what)
	}
	if text == "" {
		return nil, nil
	}
	bytes := append([]byte(text), 0)
	return charPointer(bytes), nil
}
