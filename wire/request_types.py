"""The types of decoded requests: kio's classes of the lowest and of the highest version that is served.

What both versions have is simply there.  For a field of only some versions a handler asks
`getattr(request, name, default)`; where a version changed the shape, it casts to that version's.  The
module exists for type checkers: at run time kio's class of a version is loaded with the first request of it.
A test holds the versions equal to those of `api.TABLE`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v0.request import AddOffsetsToTxnRequest as AddOffsetsToTxnRequestV0
    from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest as AddOffsetsToTxnRequestV4
    from kio.schema.add_partitions_to_txn.v0.request import (
        AddPartitionsToTxnRequest as AddPartitionsToTxnRequestV0,
    )
    from kio.schema.add_partitions_to_txn.v0.request import (
        AddPartitionsToTxnTopic as AddPartitionsToTxnTopicV0,
    )
    from kio.schema.add_partitions_to_txn.v5.request import (
        AddPartitionsToTxnRequest as AddPartitionsToTxnRequestV5,
    )
    from kio.schema.add_partitions_to_txn.v5.request import (
        AddPartitionsToTxnTopic as AddPartitionsToTxnTopicV5,
    )
    from kio.schema.alter_client_quotas.v0.request import (
        AlterClientQuotasRequest as AlterClientQuotasRequestV0,
    )
    from kio.schema.alter_client_quotas.v0.request import EntryData as QuotaEntryV0
    from kio.schema.alter_client_quotas.v1.request import (
        AlterClientQuotasRequest as AlterClientQuotasRequestV1,
    )
    from kio.schema.alter_client_quotas.v1.request import EntryData as QuotaEntryV1
    from kio.schema.alter_configs.v0.request import AlterConfigsRequest as AlterConfigsRequestV0
    from kio.schema.alter_configs.v0.request import AlterConfigsResource as AlterConfigsResourceV0
    from kio.schema.alter_configs.v2.request import AlterConfigsRequest as AlterConfigsRequestV2
    from kio.schema.alter_configs.v2.request import AlterConfigsResource as AlterConfigsResourceV2
    from kio.schema.alter_partition_reassignments.v0.request import (
        AlterPartitionReassignmentsRequest as AlterPartitionReassignmentsRequestV0,
    )
    from kio.schema.alter_partition_reassignments.v1.request import (
        AlterPartitionReassignmentsRequest as AlterPartitionReassignmentsRequestV1,
    )
    from kio.schema.alter_replica_log_dirs.v1.request import (
        AlterReplicaLogDirsRequest as AlterReplicaLogDirsRequestV1,
    )
    from kio.schema.alter_replica_log_dirs.v2.request import (
        AlterReplicaLogDirsRequest as AlterReplicaLogDirsRequestV2,
    )
    from kio.schema.alter_user_scram_credentials.v0.request import (
        AlterUserScramCredentialsRequest as AlterUserScramCredentialsRequestV0,
    )
    from kio.schema.api_versions.v0.request import ApiVersionsRequest as ApiVersionsRequestV0
    from kio.schema.api_versions.v4.request import ApiVersionsRequest as ApiVersionsRequestV4
    from kio.schema.consumer_group_describe.v0.request import (
        ConsumerGroupDescribeRequest as ConsumerGroupDescribeRequestV0,
    )
    from kio.schema.consumer_group_describe.v1.request import (
        ConsumerGroupDescribeRequest as ConsumerGroupDescribeRequestV1,
    )
    from kio.schema.consumer_group_heartbeat.v0.request import (
        ConsumerGroupHeartbeatRequest as ConsumerGroupHeartbeatRequestV0,
    )
    from kio.schema.consumer_group_heartbeat.v0.request import TopicPartitions as OwnedTopicV0
    from kio.schema.consumer_group_heartbeat.v1.request import (
        ConsumerGroupHeartbeatRequest as ConsumerGroupHeartbeatRequestV1,
    )
    from kio.schema.consumer_group_heartbeat.v1.request import TopicPartitions as OwnedTopicV1
    from kio.schema.create_acls.v1.request import CreateAclsRequest as CreateAclsRequestV1
    from kio.schema.create_acls.v3.request import CreateAclsRequest as CreateAclsRequestV3
    from kio.schema.create_delegation_token.v1.request import (
        CreateDelegationTokenRequest as CreateDelegationTokenRequestV1,
    )
    from kio.schema.create_delegation_token.v3.request import (
        CreateDelegationTokenRequest as CreateDelegationTokenRequestV3,
    )
    from kio.schema.create_partitions.v0.request import CreatePartitionsRequest as CreatePartitionsRequestV0
    from kio.schema.create_partitions.v3.request import CreatePartitionsRequest as CreatePartitionsRequestV3
    from kio.schema.create_topics.v2.request import CreatableTopic as CreatableTopicV2
    from kio.schema.create_topics.v2.request import CreateTopicsRequest as CreateTopicsRequestV2
    from kio.schema.create_topics.v7.request import CreatableTopic as CreatableTopicV7
    from kio.schema.create_topics.v7.request import CreateTopicsRequest as CreateTopicsRequestV7
    from kio.schema.delete_acls.v1.request import DeleteAclsRequest as DeleteAclsRequestV1
    from kio.schema.delete_acls.v3.request import DeleteAclsRequest as DeleteAclsRequestV3
    from kio.schema.delete_groups.v0.request import DeleteGroupsRequest as DeleteGroupsRequestV0
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest as DeleteGroupsRequestV2
    from kio.schema.delete_records.v0.request import DeleteRecordsRequest as DeleteRecordsRequestV0
    from kio.schema.delete_records.v2.request import DeleteRecordsRequest as DeleteRecordsRequestV2
    from kio.schema.delete_topics.v1.request import DeleteTopicsRequest as DeleteTopicsRequestV1
    from kio.schema.delete_topics.v6.request import DeleteTopicsRequest as DeleteTopicsRequestV6
    from kio.schema.describe_acls.v1.request import DescribeAclsRequest as DescribeAclsRequestV1
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest as DescribeAclsRequestV3
    from kio.schema.describe_client_quotas.v0.request import ComponentData as QuotaComponentV0
    from kio.schema.describe_client_quotas.v0.request import (
        DescribeClientQuotasRequest as DescribeClientQuotasRequestV0,
    )
    from kio.schema.describe_client_quotas.v1.request import ComponentData as QuotaComponentV1
    from kio.schema.describe_client_quotas.v1.request import (
        DescribeClientQuotasRequest as DescribeClientQuotasRequestV1,
    )
    from kio.schema.describe_cluster.v0.request import DescribeClusterRequest as DescribeClusterRequestV0
    from kio.schema.describe_cluster.v2.request import DescribeClusterRequest as DescribeClusterRequestV2
    from kio.schema.describe_configs.v1.request import DescribeConfigsRequest as DescribeConfigsRequestV1
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest as DescribeConfigsRequestV4
    from kio.schema.describe_delegation_token.v1.request import (
        DescribeDelegationTokenRequest as DescribeDelegationTokenRequestV1,
    )
    from kio.schema.describe_delegation_token.v3.request import (
        DescribeDelegationTokenRequest as DescribeDelegationTokenRequestV3,
    )
    from kio.schema.describe_groups.v0.request import DescribeGroupsRequest as DescribeGroupsRequestV0
    from kio.schema.describe_groups.v6.request import DescribeGroupsRequest as DescribeGroupsRequestV6
    from kio.schema.describe_log_dirs.v1.request import DescribeLogDirsRequest as DescribeLogDirsRequestV1
    from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest as DescribeLogDirsRequestV4
    from kio.schema.describe_producers.v0.request import (
        DescribeProducersRequest as DescribeProducersRequestV0,
    )
    from kio.schema.describe_quorum.v0.request import DescribeQuorumRequest as DescribeQuorumRequestV0
    from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest as DescribeQuorumRequestV2
    from kio.schema.describe_topic_partitions.v0.request import (
        DescribeTopicPartitionsRequest as DescribeTopicPartitionsRequestV0,
    )
    from kio.schema.describe_transactions.v0.request import (
        DescribeTransactionsRequest as DescribeTransactionsRequestV0,
    )
    from kio.schema.describe_user_scram_credentials.v0.request import (
        DescribeUserScramCredentialsRequest as DescribeUserScramCredentialsRequestV0,
    )
    from kio.schema.elect_leaders.v0.request import ElectLeadersRequest as ElectLeadersRequestV0
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest as ElectLeadersRequestV2
    from kio.schema.end_txn.v0.request import EndTxnRequest as EndTxnRequestV0
    from kio.schema.end_txn.v5.request import EndTxnRequest as EndTxnRequestV5
    from kio.schema.expire_delegation_token.v1.request import (
        ExpireDelegationTokenRequest as ExpireDelegationTokenRequestV1,
    )
    from kio.schema.expire_delegation_token.v2.request import (
        ExpireDelegationTokenRequest as ExpireDelegationTokenRequestV2,
    )
    from kio.schema.find_coordinator.v0.request import FindCoordinatorRequest as FindCoordinatorRequestV0
    from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest as FindCoordinatorRequestV6
    from kio.schema.get_telemetry_subscriptions.v0.request import (
        GetTelemetrySubscriptionsRequest as GetTelemetrySubscriptionsRequestV0,
    )
    from kio.schema.heartbeat.v0.request import HeartbeatRequest as HeartbeatRequestV0
    from kio.schema.heartbeat.v4.request import HeartbeatRequest as HeartbeatRequestV4
    from kio.schema.incremental_alter_configs.v0.request import (
        AlterConfigsResource as IncrementalAlterConfigsResourceV0,
    )
    from kio.schema.incremental_alter_configs.v0.request import (
        IncrementalAlterConfigsRequest as IncrementalAlterConfigsRequestV0,
    )
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterConfigsResource as IncrementalAlterConfigsResourceV1,
    )
    from kio.schema.incremental_alter_configs.v1.request import (
        IncrementalAlterConfigsRequest as IncrementalAlterConfigsRequestV1,
    )
    from kio.schema.init_producer_id.v0.request import InitProducerIdRequest as InitProducerIdRequestV0
    from kio.schema.init_producer_id.v6.request import InitProducerIdRequest as InitProducerIdRequestV6
    from kio.schema.join_group.v0.request import JoinGroupRequest as JoinGroupRequestV0
    from kio.schema.join_group.v9.request import JoinGroupRequest as JoinGroupRequestV9
    from kio.schema.leave_group.v0.request import LeaveGroupRequest as LeaveGroupRequestV0
    from kio.schema.leave_group.v5.request import LeaveGroupRequest as LeaveGroupRequestV5
    from kio.schema.list_config_resources.v0.request import (
        ListConfigResourcesRequest as ListConfigResourcesRequestV0,
    )
    from kio.schema.list_config_resources.v1.request import (
        ListConfigResourcesRequest as ListConfigResourcesRequestV1,
    )
    from kio.schema.list_groups.v0.request import ListGroupsRequest as ListGroupsRequestV0
    from kio.schema.list_groups.v5.request import ListGroupsRequest as ListGroupsRequestV5
    from kio.schema.list_offsets.v1.request import ListOffsetsRequest as ListOffsetsRequestV1
    from kio.schema.list_offsets.v10.request import ListOffsetsRequest as ListOffsetsRequestV10
    from kio.schema.list_partition_reassignments.v0.request import (
        ListPartitionReassignmentsRequest as ListPartitionReassignmentsRequestV0,
    )
    from kio.schema.list_transactions.v0.request import ListTransactionsRequest as ListTransactionsRequestV0
    from kio.schema.list_transactions.v2.request import ListTransactionsRequest as ListTransactionsRequestV2
    from kio.schema.metadata.v0.request import MetadataRequest as MetadataRequestV0
    from kio.schema.metadata.v13.request import MetadataRequest as MetadataRequestV13
    from kio.schema.offset_commit.v2.request import OffsetCommitRequest as OffsetCommitRequestV2
    from kio.schema.offset_commit.v2.request import OffsetCommitRequestTopic as OffsetCommitTopicV2
    from kio.schema.offset_commit.v9.request import OffsetCommitRequest as OffsetCommitRequestV9
    from kio.schema.offset_commit.v9.request import OffsetCommitRequestTopic as OffsetCommitTopicV9
    from kio.schema.offset_delete.v0.request import OffsetDeleteRequest as OffsetDeleteRequestV0
    from kio.schema.offset_fetch.v1.request import OffsetFetchRequest as OffsetFetchRequestV1
    from kio.schema.offset_fetch.v1.request import OffsetFetchRequestTopic as OffsetFetchTopicV1
    from kio.schema.offset_fetch.v9.request import OffsetFetchRequest as OffsetFetchRequestV9
    from kio.schema.offset_fetch.v9.request import OffsetFetchRequestGroup as OffsetFetchGroupV9
    from kio.schema.offset_fetch.v9.request import OffsetFetchRequestTopics as OffsetFetchTopicV9
    from kio.schema.offset_for_leader_epoch.v2.request import (
        OffsetForLeaderEpochRequest as OffsetForLeaderEpochRequestV2,
    )
    from kio.schema.offset_for_leader_epoch.v4.request import (
        OffsetForLeaderEpochRequest as OffsetForLeaderEpochRequestV4,
    )
    from kio.schema.push_telemetry.v0.request import PushTelemetryRequest as PushTelemetryRequestV0
    from kio.schema.renew_delegation_token.v1.request import (
        RenewDelegationTokenRequest as RenewDelegationTokenRequestV1,
    )
    from kio.schema.renew_delegation_token.v2.request import (
        RenewDelegationTokenRequest as RenewDelegationTokenRequestV2,
    )
    from kio.schema.sasl_authenticate.v0.request import SaslAuthenticateRequest as SaslAuthenticateRequestV0
    from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest as SaslAuthenticateRequestV2
    from kio.schema.sasl_handshake.v0.request import SaslHandshakeRequest as SaslHandshakeRequestV0
    from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest as SaslHandshakeRequestV1
    from kio.schema.sync_group.v0.request import SyncGroupRequest as SyncGroupRequestV0
    from kio.schema.sync_group.v5.request import SyncGroupRequest as SyncGroupRequestV5
    from kio.schema.txn_offset_commit.v0.request import TxnOffsetCommitRequest as TxnOffsetCommitRequestV0
    from kio.schema.txn_offset_commit.v0.request import TxnOffsetCommitRequestTopic as TxnOffsetCommitTopicV0
    from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest as TxnOffsetCommitRequestV5
    from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequestTopic as TxnOffsetCommitTopicV5
    from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest as UnregisterBrokerRequestV0
    from kio.schema.update_features.v0.request import FeatureUpdateKey as FeatureUpdateV0
    from kio.schema.update_features.v0.request import UpdateFeaturesRequest as UpdateFeaturesRequestV0
    from kio.schema.update_features.v2.request import FeatureUpdateKey as FeatureUpdateV2
    from kio.schema.update_features.v2.request import UpdateFeaturesRequest as UpdateFeaturesRequestV2
    from kio.schema.write_txn_markers.v1.request import WriteTxnMarkersRequest as WriteTxnMarkersRequestV1
    from kio.schema.write_txn_markers.v2.request import WriteTxnMarkersRequest as WriteTxnMarkersRequestV2

    ListOffsetsRequest = ListOffsetsRequestV1 | ListOffsetsRequestV10
    MetadataRequest = MetadataRequestV0 | MetadataRequestV13
    OffsetCommitRequest = OffsetCommitRequestV2 | OffsetCommitRequestV9
    OffsetFetchRequest = OffsetFetchRequestV1 | OffsetFetchRequestV9
    FindCoordinatorRequest = FindCoordinatorRequestV0 | FindCoordinatorRequestV6
    JoinGroupRequest = JoinGroupRequestV0 | JoinGroupRequestV9
    HeartbeatRequest = HeartbeatRequestV0 | HeartbeatRequestV4
    LeaveGroupRequest = LeaveGroupRequestV0 | LeaveGroupRequestV5
    SyncGroupRequest = SyncGroupRequestV0 | SyncGroupRequestV5
    DescribeGroupsRequest = DescribeGroupsRequestV0 | DescribeGroupsRequestV6
    ListGroupsRequest = ListGroupsRequestV0 | ListGroupsRequestV5
    ApiVersionsRequest = ApiVersionsRequestV0 | ApiVersionsRequestV4
    CreateTopicsRequest = CreateTopicsRequestV2 | CreateTopicsRequestV7
    DeleteTopicsRequest = DeleteTopicsRequestV1 | DeleteTopicsRequestV6
    DeleteRecordsRequest = DeleteRecordsRequestV0 | DeleteRecordsRequestV2
    InitProducerIdRequest = InitProducerIdRequestV0 | InitProducerIdRequestV6
    OffsetForLeaderEpochRequest = OffsetForLeaderEpochRequestV2 | OffsetForLeaderEpochRequestV4
    AddPartitionsToTxnRequest = AddPartitionsToTxnRequestV0 | AddPartitionsToTxnRequestV5
    AddOffsetsToTxnRequest = AddOffsetsToTxnRequestV0 | AddOffsetsToTxnRequestV4
    EndTxnRequest = EndTxnRequestV0 | EndTxnRequestV5
    WriteTxnMarkersRequest = WriteTxnMarkersRequestV1 | WriteTxnMarkersRequestV2
    TxnOffsetCommitRequest = TxnOffsetCommitRequestV0 | TxnOffsetCommitRequestV5
    DescribeConfigsRequest = DescribeConfigsRequestV1 | DescribeConfigsRequestV4
    AlterConfigsRequest = AlterConfigsRequestV0 | AlterConfigsRequestV2
    AlterReplicaLogDirsRequest = AlterReplicaLogDirsRequestV1 | AlterReplicaLogDirsRequestV2
    DescribeLogDirsRequest = DescribeLogDirsRequestV1 | DescribeLogDirsRequestV4
    SaslAuthenticateRequest = SaslAuthenticateRequestV0 | SaslAuthenticateRequestV2
    DescribeAclsRequest = DescribeAclsRequestV1 | DescribeAclsRequestV3
    CreateAclsRequest = CreateAclsRequestV1 | CreateAclsRequestV3
    DeleteAclsRequest = DeleteAclsRequestV1 | DeleteAclsRequestV3
    DescribeClientQuotasRequest = DescribeClientQuotasRequestV0 | DescribeClientQuotasRequestV1
    AlterClientQuotasRequest = AlterClientQuotasRequestV0 | AlterClientQuotasRequestV1
    DescribeUserScramCredentialsRequest = DescribeUserScramCredentialsRequestV0
    AlterUserScramCredentialsRequest = AlterUserScramCredentialsRequestV0
    QuotaEntry = QuotaEntryV0 | QuotaEntryV1
    QuotaComponent = QuotaComponentV0 | QuotaComponentV1
    SaslHandshakeRequest = SaslHandshakeRequestV0 | SaslHandshakeRequestV1
    CreatePartitionsRequest = CreatePartitionsRequestV0 | CreatePartitionsRequestV3
    CreateDelegationTokenRequest = CreateDelegationTokenRequestV1 | CreateDelegationTokenRequestV3
    RenewDelegationTokenRequest = RenewDelegationTokenRequestV1 | RenewDelegationTokenRequestV2
    ExpireDelegationTokenRequest = ExpireDelegationTokenRequestV1 | ExpireDelegationTokenRequestV2
    DescribeDelegationTokenRequest = DescribeDelegationTokenRequestV1 | DescribeDelegationTokenRequestV3
    DeleteGroupsRequest = DeleteGroupsRequestV0 | DeleteGroupsRequestV2
    ElectLeadersRequest = ElectLeadersRequestV0 | ElectLeadersRequestV2
    IncrementalAlterConfigsRequest = IncrementalAlterConfigsRequestV0 | IncrementalAlterConfigsRequestV1
    AlterPartitionReassignmentsRequest = (
        AlterPartitionReassignmentsRequestV0 | AlterPartitionReassignmentsRequestV1
    )
    ListPartitionReassignmentsRequest = ListPartitionReassignmentsRequestV0
    OffsetDeleteRequest = OffsetDeleteRequestV0
    DescribeQuorumRequest = DescribeQuorumRequestV0 | DescribeQuorumRequestV2
    UpdateFeaturesRequest = UpdateFeaturesRequestV0 | UpdateFeaturesRequestV2
    DescribeClusterRequest = DescribeClusterRequestV0 | DescribeClusterRequestV2
    DescribeProducersRequest = DescribeProducersRequestV0
    UnregisterBrokerRequest = UnregisterBrokerRequestV0
    DescribeTransactionsRequest = DescribeTransactionsRequestV0
    ListTransactionsRequest = ListTransactionsRequestV0 | ListTransactionsRequestV2
    ConsumerGroupHeartbeatRequest = ConsumerGroupHeartbeatRequestV0 | ConsumerGroupHeartbeatRequestV1
    ConsumerGroupDescribeRequest = ConsumerGroupDescribeRequestV0 | ConsumerGroupDescribeRequestV1
    GetTelemetrySubscriptionsRequest = GetTelemetrySubscriptionsRequestV0
    PushTelemetryRequest = PushTelemetryRequestV0
    ListConfigResourcesRequest = ListConfigResourcesRequestV0 | ListConfigResourcesRequestV1
    DescribeTopicPartitionsRequest = DescribeTopicPartitionsRequestV0

    # structures in them
    CreatableTopic = CreatableTopicV2 | CreatableTopicV7
    AddPartitionsToTxnTopic = AddPartitionsToTxnTopicV0 | AddPartitionsToTxnTopicV5
    AlterConfigsResource = AlterConfigsResourceV0 | AlterConfigsResourceV2
    IncrementalAlterConfigsResource = IncrementalAlterConfigsResourceV0 | IncrementalAlterConfigsResourceV1
    FeatureUpdate = FeatureUpdateV0 | FeatureUpdateV2
    OffsetCommitTopic = OffsetCommitTopicV2 | OffsetCommitTopicV9
    TxnOffsetCommitTopic = TxnOffsetCommitTopicV0 | TxnOffsetCommitTopicV5
    OwnedTopic = OwnedTopicV0 | OwnedTopicV1
    OffsetFetchGroup = OffsetFetchGroupV9
    OffsetFetchTopic = OffsetFetchTopicV1 | OffsetFetchTopicV9
