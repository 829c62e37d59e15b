// Runs cases side by side: `program client bootstrap-servers case ...`.  A case is a function of the client's table; it is given
// the cluster and returns what the client saw, which is printed as one line of JSON.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

const patience = 30 * time.Second

type seen = map[string]any

// A case returns what the client saw.  It may panic: that is reported as its failure.
type testCase func(brokers []string) seen

var clients = map[string]map[string]testCase{
	"sarama":   saramaCases,
	"kafka-go": kafkaGoCases,
}

func main() {
	go func() { // it ends with the tests
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	client, brokers, names := os.Args[1], strings.Split(os.Args[2], ","), os.Args[3:]
	var waiting sync.WaitGroup
	var output sync.Mutex
	for _, name := range names {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			line, err := json.Marshal(report(client, name, brokers))
			must(err)
			output.Lock()
			defer output.Unlock()
			fmt.Println(string(line))
		}()
	}
	waiting.Wait()
}

func report(client, name string, brokers []string) (result seen) {
	defer func() {
		if failure := recover(); failure != nil {
			result = seen{"case": name, "failed": fmt.Sprintf("%v\n%s", failure, debug.Stack())}
		}
	}()
	chosen, known := clients[client][name]
	if !known {
		panic("the program for " + client + " has no case of this name")
	}
	return seen{"case": name, "saw": chosen(brokers)}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// The result of a call that must succeed.
func got[T any](value T, err error) T {
	must(err)
	return value
}

// Waits until the condition holds.
func until(what string, condition func() bool) {
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			panic(fmt.Sprintf("not within %v: %s", patience, what))
		}
	}
}

var numbers struct {
	sync.Mutex
	next int
}

func fresh(what string) string {
	numbers.Lock()
	defer numbers.Unlock()
	numbers.next++
	return fmt.Sprintf("go-%s-%d-%d", what, os.Getpid(), numbers.next)
}

func numbered(what string, count int) []string {
	values := make([]string, count)
	for number := range values {
		values[number] = fmt.Sprintf("%s-%03d", what, number)
	}
	return values
}

// The error's own words, "" when there is none.
func refusal(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
