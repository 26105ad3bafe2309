package faclient

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const patience = 60 * time.Second

// private returns a client of a daemon of its own, which ends with the test.
func private(t *testing.T) *Client {
	t.Helper()
	return connect(t, &Options{Private: true, Name: "go test"})
}

func connect(t *testing.T, options *Options) *Client {
	t.Helper()
	options.Connect = patience
	c := must(Connect(options))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// must returns a value that comes without an error: must(f())(t).
func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		check(t, err)
		return value
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// says checks an error's number and a part of its sentence.
func says(t *testing.T, err error, errno syscall.Errno, part string) {
	t.Helper()
	if !errors.Is(err, errno) || !strings.Contains(fmt.Sprint(err), part) {
		t.Fatalf("the error is %v; expected %v and '%s'", err, errno, part)
	}
}

func equal[T comparable](t *testing.T, found, expected T) {
	t.Helper()
	if found != expected {
		t.Fatalf("found %v; expected %v", found, expected)
	}
}

func near(t *testing.T, found, expected float32) {
	t.Helper()
	if d := found - expected; d != d || d > 1e-4 || d < -1e-4 {
		t.Fatalf("found %v; expected %v", found, expected)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came so: %s", what)
		}
	}
}

// supervised is a daemon whose pool outlives it: fad --supervise.
type supervised struct{ socket string }

func startSupervised(t *testing.T) supervised {
	t.Helper()
	folder := must(os.MkdirTemp("", "faclient-go-"))(t) // t.TempDir() may be too long for a socket
	t.Cleanup(func() { os.RemoveAll(folder) })
	config := filepath.Join(folder, "fad.conf")
	check(t, os.WriteFile(config, []byte("[pool]\nbytes = 64M\n"), 0o600))
	s := supervised{filepath.Join(folder, "fad.sock")}
	command := exec.Command(os.Getenv("FAD_DAEMON"), "--supervise", "--log-level", "error", "--socket",
		s.socket, "--config", config)
	command.Stderr = os.Stderr
	check(t, command.Start())
	t.Cleanup(func() {
		command.Process.Signal(syscall.SIGTERM)
		command.Wait()
	})
	eventually(t, "the daemon serves", func() bool {
		c, err := Connect(&Options{Socket: s.socket})
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return s
}

func (s supervised) connect(t *testing.T) *Client {
	t.Helper()
	return connect(t, &Options{Socket: s.socket, Reconnect: patience})
}

// kill kills the daemon, which its supervisor replaces.
func (s supervised) kill(t *testing.T) {
	t.Helper()
	c := s.connect(t)
	info := must(c.Info())(t)
	check(t, syscall.Kill(info.Pid, syscall.SIGKILL))
	c.Close()
}

// socketVariable makes a test the other process of one.
const socketVariable = "FACLIENT_TEST_SOCKET"

// runOther runs a test of this program again, in another process that is to use this client's daemon.
func runOther(t *testing.T, c *Client) {
	t.Helper()
	command := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), socketVariable+"="+c.SocketPath())
	out, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v: %s", err, out)
	}
}

// other returns the client of the other process; nil in the test itself.
func other(t *testing.T) *Client {
	t.Helper()
	if socket := os.Getenv(socketVariable); socket != "" {
		return connect(t, &Options{Socket: socket})
	}
	return nil
}
