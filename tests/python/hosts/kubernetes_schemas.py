"""JSON schemas of the Kubernetes objects in examples/kubernetes, for the fields that such files use.

After Kubernetes' API (v1, batch/v1) and the custom resource definitions that Kubeflow's MPI Operator (v2beta1) and
Trainer (v1alpha1) install, with two differences: an unknown field is an error here, where the API server drops it
silently; and of a pod only what training needs is known.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
TEXTS: Schema = {"type": "array", "items": {"type": "string"}, "minItems": 1}
COUNT: Schema = {"type": "integer", "minimum": 1}
INTEGER: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
LABEL: Schema = {"type": "string", "pattern": r"^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[numkMGTPE])?$"}


def record(required: str = "", **properties: Schema) -> Schema:
    """An object with these fields and no others. Names in `required` are separated by spaces."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def many(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


METADATA = record(
    "name",
    name=LABEL,
    namespace=LABEL,
    labels={"type": "object", "additionalProperties": {"type": "string"}},
    annotations={"type": "object", "additionalProperties": {"type": "string"}},
)
TEMPLATE_METADATA = {**METADATA, "required": []}
ENV = many(record("name value", name={"type": "string", "pattern": r"^[A-Z_][A-Z0-9_]*$"}, value={"type": "string"}))
AMOUNTS: Schema = {"type": "object", "additionalProperties": QUANTITY}
RESOURCES = record(limits=AMOUNTS, requests=AMOUNTS)
SECURITY = record(runAsUser=INTEGER, runAsGroup=INTEGER, runAsNonRoot=FLAG, privileged=FLAG)
CONTAINER = record(
    "name image",
    name=LABEL,
    image=TEXT,
    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    command=TEXTS,
    args=TEXTS,
    env=ENV,
    workingDir=TEXT,
    resources=RESOURCES,
    securityContext=SECURITY,
    volumeMounts=many(record("name mountPath", name=LABEL, mountPath=TEXT, readOnly=FLAG)),
    readinessProbe=record(tcpSocket=record("port", port=COUNT), initialDelaySeconds=INTEGER, periodSeconds=COUNT),
)
POD = record(
    "containers",
    containers=many(CONTAINER),
    securityContext=record(fsGroup=INTEGER, runAsUser=INTEGER, runAsNonRoot=FLAG),
    restartPolicy={"enum": ["Always", "OnFailure", "Never"]},
    nodeSelector={"type": "object", "additionalProperties": {"type": "string"}},
    subdomain=LABEL,
    volumes=many(
        record(
            "name", name=LABEL, secret=record("secretName", secretName=LABEL, defaultMode={**INTEGER, "maximum": 0o777})
        )
    ),
)
POD_TEMPLATE = record("spec", metadata=TEMPLATE_METADATA, spec=POD)

# --- Kubernetes itself ------------------------------------------------------------------------------------------------

SERVICE = record(
    "apiVersion kind metadata spec",
    apiVersion={"const": "v1"},
    kind={"const": "Service"},
    metadata=METADATA,
    spec=record(
        "selector",
        clusterIP={"const": "None"},  # what a headless one has
        publishNotReadyAddresses=FLAG,
        selector={"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
    ),
)
JOB_POD = {**POD, "required": ["containers", "restartPolicy"]}
JOB_POD = {**JOB_POD, "properties": {**POD["properties"], "restartPolicy": {"enum": ["OnFailure", "Never"]}}}
JOB = record(
    "apiVersion kind metadata spec",
    apiVersion={"const": "batch/v1"},
    kind={"const": "Job"},
    metadata=METADATA,
    spec=record(
        "template",
        completionMode={"enum": ["Indexed", "NonIndexed"]},
        completions=COUNT,
        parallelism=COUNT,
        backoffLimit=INTEGER,
        activeDeadlineSeconds=COUNT,
        template=record("spec", metadata=TEMPLATE_METADATA, spec=JOB_POD),
    ),
)

# --- kubeflow.org/v2beta1 ---------------------------------------------------------------------------------------------

REPLICAS = record(
    "template",
    replicas=INTEGER,
    restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
    template=POD_TEMPLATE,
)
MPI_JOB = record(
    "apiVersion kind metadata spec",
    apiVersion={"const": "kubeflow.org/v2beta1"},
    kind={"const": "MPIJob"},
    metadata=METADATA,
    spec=record(
        "mpiReplicaSpecs",
        mpiImplementation={"enum": ["OpenMPI", "Intel", "MPICH"]},
        slotsPerWorker=COUNT,
        sshAuthMountPath=TEXT,
        launcherCreationPolicy={"enum": ["AtStartup", "WaitForWorkersReady"]},
        runPolicy=record(
            cleanPodPolicy={"enum": ["All", "Running", "None"]},
            backoffLimit=INTEGER,
            ttlSecondsAfterFinished=INTEGER,
            activeDeadlineSeconds=COUNT,
            suspend=FLAG,
        ),
        mpiReplicaSpecs=record("Launcher", Launcher=REPLICAS, Worker=REPLICAS),
    ),
)

# --- trainer.kubeflow.org/v1alpha1 ------------------------------------------------------------------------------------

TRAINER_API: Schema = {"const": "trainer.kubeflow.org/v1alpha1"}
REPLICATED_JOB = record(
    "name template",
    name=LABEL,
    replicas=COUNT,
    dependsOn=many(record("name status", name=LABEL, status={"enum": ["Ready", "Complete"]})),
    template=record("spec", metadata=TEMPLATE_METADATA, spec=record("template", template=POD_TEMPLATE)),
)
TRAINING_RUNTIME = record(
    "apiVersion kind metadata spec",
    apiVersion=TRAINER_API,
    kind={"enum": ["TrainingRuntime", "ClusterTrainingRuntime"]},
    metadata=METADATA,
    spec=record(
        "template",
        mlPolicy=record(
            numNodes=COUNT,
            mpi=record(
                mpiImplementation={"enum": ["OpenMPI", ""]},
                numProcPerNode=COUNT,
                sshAuthMountPath=TEXT,
                runLauncherAsNode=FLAG,
            ),
        ),
        template=record(
            "spec",
            metadata=TEMPLATE_METADATA,
            spec=record(
                "replicatedJobs",
                network=record(enableDNSHostnames=FLAG, publishNotReadyAddresses=FLAG, subdomain=TEXT),
                successPolicy=record("operator", operator={"enum": ["All", "Any"]}, targetReplicatedJobs=many(LABEL)),
                replicatedJobs=many(REPLICATED_JOB),
            ),
        ),
    ),
)
TRAIN_JOB = record(
    "apiVersion kind metadata spec",
    apiVersion=TRAINER_API,
    kind={"const": "TrainJob"},
    metadata=METADATA,
    spec=record(
        "runtimeRef",
        runtimeRef=record(
            "name",
            name={"type": "string", "minLength": 1, "maxLength": 253},
            apiGroup={"const": "trainer.kubeflow.org"},
            kind={"enum": ["TrainingRuntime", "ClusterTrainingRuntime"]},
        ),
        trainer=record(
            image={"type": "string", "maxLength": 500},
            command={**TEXTS, "maxItems": 128},
            args={**TEXTS, "maxItems": 128},
            env={**ENV, "maxItems": 128},
            numNodes=COUNT,
            numProcPerNode=COUNT,
            resourcesPerNode=RESOURCES,
        ),
        suspend=FLAG,
        activeDeadlineSeconds=COUNT,
        managedBy={"enum": ["trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue"]},
    ),
)

KINDS = {
    "Service": SERVICE,
    "Job": JOB,
    "MPIJob": MPI_JOB,
    "TrainingRuntime": TRAINING_RUNTIME,
    "ClusterTrainingRuntime": TRAINING_RUNTIME,
    "TrainJob": TRAIN_JOB,
}
