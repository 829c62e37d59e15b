// What sarama and kafka-go see of a cluster; fetched by tests/foreign_clients.py.
module tidegate/tests/clients

go 1.24

require (
	github.com/IBM/sarama v1.61.1
	github.com/segmentio/kafka-go v0.4.51
	github.com/xdg-go/scram v1.1.2
)
