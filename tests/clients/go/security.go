package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
)

// What a client shows to a secured cluster, of the environment: tests/cluster/secured_ways.py says what it has.
type proofOfIdentity struct {
	Way, CA, Certificate, Username, Password, Token string
}

// nil where clients need none.
func security() *proofOfIdentity {
	text := os.Getenv("CLIENT_SECURITY")
	if text == "" {
		return nil
	}
	var proof proofOfIdentity
	must(json.Unmarshal([]byte(text), &proof))
	return &proof
}

func (proof *proofOfIdentity) tls() *tls.Config {
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(got(os.ReadFile(proof.CA))) {
		panic("no certificate in " + proof.CA)
	}
	config := &tls.Config{RootCAs: authorities}
	if proof.Certificate != "" {
		config.Certificates = []tls.Certificate{got(tls.LoadX509KeyPair(proof.Certificate, proof.Certificate))}
	}
	return config
}
