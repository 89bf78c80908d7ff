// lockfence with go-redis.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

const lock, balance = "lock:{acct:7}", "{acct:7}:balance"

func connect() *redis.Client {
	port := os.Getenv("REDIS_PORT")
	if port == "" {
		port = "6379"
	}
	// A request that waits keeps its connection: the socket's time-out must be longer than WAIT.
	return redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, ReadTimeout: 15 * time.Second})
}

func newOwner() string {
	bytes := make([]byte, 16)
	if _, err := rand.Read(bytes); err != nil {
		log.Fatal(err)
	}
	return hex.EncodeToString(bytes)
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	ctx := context.Background()
	alice, bob := connect(), connect()
	aliceOwner, bobOwner := newOwner(), newOwner()

	aliceToken, err := alice.Do(ctx, "LOCK.ACQUIRE", lock, aliceOwner, 30_000).Int64()
	if errors.Is(err, redis.Nil) {
		log.Fatal("somebody else has the lock")
	}
	must(err)
	fmt.Println("alice", aliceToken)

	granted := make(chan *redis.Cmd)
	go func() {
		granted <- bob.Do(ctx, "LOCK.ACQUIRE", lock, bobOwner, 30_000, "WAIT", 10_000)
	}()

	must(alice.Do(ctx, "FENCE.WRITE", lock, aliceToken, balance, 100).Err())
	must(alice.Do(ctx, "LOCK.RELEASE", lock, aliceOwner).Err())
	bobToken, err := (<-granted).Int64()
	must(err)
	fmt.Println("bob", bobToken)

	err = alice.Do(ctx, "FENCE.WRITE", lock, aliceToken, balance, 101).Err()
	fmt.Println("fenced", redis.HasErrorPrefix(err, "FENCED"))

	must(bob.Do(ctx, "FENCE.WRITE", lock, bobToken, balance, 250).Err())
	fmt.Println("balance", alice.Get(ctx, balance).Val())
	must(bob.Do(ctx, "LOCK.RELEASE", lock, bobOwner).Err())
}
