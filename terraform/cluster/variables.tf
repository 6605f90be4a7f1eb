variable "region" {
  description = "AWS region of everything here. The GPU types that you want must be sold in it."
  type        = string
  default     = "us-east-1"

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region must be an AWS region such as us-east-1."
  }
}

variable "cluster_name" {
  description = "Name of the EKS cluster; also of the interruption queue, and the value of the discovery tag karpenter.sh/discovery."
  type        = string
  default     = "cuda-graph-inference"

  validation {
    # The longest name made of it is a role's, of 64 characters.
    condition     = can(regex("^[a-zA-Z0-9][a-zA-Z0-9-]{0,37}$", var.cluster_name))
    error_message = "cluster_name must begin with a letter or digit and have at most 38 letters, digits and hyphens."
  }
}

variable "kubernetes_version" {
  description = "Kubernetes minor version of the control plane and of the system nodes. EKS moves up one minor version at a time."
  type        = string
  default     = "1.35"

  validation {
    condition     = contains(["1.32", "1.33", "1.34", "1.35", "1.36"], var.kubernetes_version)
    error_message = "kubernetes_version must be one of 1.32, 1.33, 1.34, 1.35, 1.36: what EKS and the pinned Karpenter both support."
  }
}

variable "support_type" {
  description = "STANDARD: EKS upgrades the cluster by itself when its version's standard support ends. EXTENDED: it stays, and an hour of control plane costs six times as much from that day."
  type        = string
  default     = "STANDARD"

  validation {
    condition     = contains(["STANDARD", "EXTENDED"], var.support_type)
    error_message = "support_type must be STANDARD or EXTENDED."
  }
}

# What the bill is sorted by. On every resource, and through the outputs on every node that Karpenter starts.

variable "environment" {
  description = "Tag environment, such as dev or production."
  type        = string
  default     = "dev"

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{0,31}$", var.environment))
    error_message = "environment must have 1 to 32 lower-case letters, digits and hyphens, such as dev."
  }
}

variable "owner" {
  description = "Tag owner: the team or person who answers for the bill."
  type        = string

  validation {
    condition     = can(regex("^[\\w.:/=+@-][\\w .:/=+@-]{0,127}$", var.owner))
    error_message = "owner must name a team or person in 1 to 128 letters, digits, spaces and any of . : / = + - @ _."
  }
}

variable "model" {
  description = "Tag model: what the GPUs serve, such as llama-3.1-8b."
  type        = string
  default     = "smollm2-135m-instruct"

  validation {
    condition     = can(regex("^[\\w.:/=+@-][\\w .:/=+@-]{0,127}$", var.model))
    error_message = "model must have 1 to 128 letters, digits, spaces and any of . : / = + - @ _."
  }
}

variable "tags" {
  description = "More tags for every resource."
  type        = map(string)
  default     = {}

  validation {
    condition     = length(setintersection(keys(var.tags), ["environment", "owner", "model"])) == 0
    error_message = "tags must not hold environment, owner or model: these have variables of their own."
  }
}

# The network.

variable "vpc_cidr" {
  description = "Addresses of the VPC. Each zone gets an eighth for private nodes and pods, and a 64th for what is public."
  type        = string
  default     = "10.0.0.0/16"

  validation {
    condition     = can(cidrhost(var.vpc_cidr, 0)) && try(tonumber(split("/", var.vpc_cidr)[1]) >= 16 && tonumber(split("/", var.vpc_cidr)[1]) <= 20, false)
    error_message = "vpc_cidr must be an IPv4 block from /16 to /20, such as 10.0.0.0/16."
  }
}

variable "zones" {
  description = "The three availability zones, where the region's first three will not do: the GPU types that you want are not sold in every zone. Empty takes the first three."
  type        = list(string)
  default     = []

  validation {
    condition     = contains([0, 3], length(var.zones)) && length(distinct(var.zones)) == length(var.zones)
    error_message = "zones must be empty or name three different availability zones, such as us-east-1a."
  }

  validation {
    condition     = alltrue([for zone in var.zones : startswith(zone, var.region)])
    error_message = "zones must lie in the region: each begins with its name."
  }
}

variable "nat" {
  description = "How private nodes reach the internet. single: one NAT gateway, whose zone all depend on. per-zone: three, and no traffic between zones. none: a way out of your own, such as a transit gateway: Karpenter calls IAM, which has no private endpoint, and images come from public registries. Until that stands, nodes join through interface_endpoints, which must be on."
  type        = string
  default     = "single"

  validation {
    condition     = contains(["none", "single", "per-zone"], var.nat)
    error_message = "nat must be none, single or per-zone."
  }

  validation {
    condition     = var.nat != "none" || var.interface_endpoints
    error_message = "nat = \"none\" needs interface_endpoints = true: without either, nodes reach no AWS service, and the first apply never ends."
  }
}

variable "interface_endpoints" {
  description = "Private endpoints for ECR, STS, EC2, SQS, EKS, EKS Pod Identity, SSM and CloudWatch, in each zone. They cost by the hour, and spare the NAT gateway what images weigh. The S3 endpoint is free and always there."
  type        = bool
  default     = false
}

variable "endpoint_public_access" {
  description = "Whether the Kubernetes API can be reached from outside the VPC, by whoever has a key. Within it the private endpoint is always on."
  type        = bool
  default     = true
}

variable "public_access_cidrs" {
  description = "Where the public Kubernetes API may be called from. Name your office or VPN."
  type        = list(string)
  default     = ["0.0.0.0/0"]

  validation {
    condition     = length(var.public_access_cidrs) > 0 && alltrue([for block in var.public_access_cidrs : can(cidrhost(block, 0))])
    error_message = "public_access_cidrs must hold at least one IPv4 block, such as 203.0.113.7/32. To close the API, set endpoint_public_access = false."
  }
}

# The cluster.

variable "creator_admin" {
  description = "Whether who applies this is made an administrator of the cluster. EKS keeps that entry itself, so it lives as long as the cluster. Decide before the first apply: a change makes a new cluster."
  type        = bool
  default     = true

  validation {
    condition     = var.creator_admin || length(var.admin_principal_arns) > 0
    error_message = "creator_admin = false needs admin_principal_arns: else nobody could use the cluster."
  }
}

variable "admin_principal_arns" {
  description = "IAM roles and users who are administrators of the cluster, besides its creator. The creator must not be among them while creator_admin is true."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.admin_principal_arns : can(regex("^arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/", arn))])
    error_message = "admin_principal_arns must hold ARNs of IAM roles or users, such as arn:aws:iam::123456789012:role/admin."
  }
}

variable "control_plane_logs" {
  description = "Kinds of control-plane logs that go to CloudWatch. audit is the big one."
  type        = set(string)
  default     = ["audit", "authenticator"]

  validation {
    condition     = length(setsubtract(var.control_plane_logs, ["api", "audit", "authenticator", "controllerManager", "scheduler"])) == 0
    error_message = "control_plane_logs may hold api, audit, authenticator, controllerManager, scheduler."
  }
}

variable "log_retention_days" {
  description = "Days that CloudWatch keeps the control-plane logs."
  type        = number
  default     = 30

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.log_retention_days)
    error_message = "log_retention_days must be a number of days that CloudWatch knows: 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, ... 3653."
  }
}

variable "addon_versions" {
  description = "Versions of EKS add-ons to pin, by name, such as { vpc-cni = \"v1.20.4-eksbuild.1\" }. One that is not named gets EKS's default for the Kubernetes version."
  type        = map(string)
  default     = {}

  validation {
    condition     = length(setsubtract(keys(var.addon_versions), ["vpc-cni", "kube-proxy", "coredns", "eks-pod-identity-agent", "metrics-server", "aws-ebs-csi-driver"])) == 0
    error_message = "addon_versions may name vpc-cni, kube-proxy, coredns, eks-pod-identity-agent, metrics-server, aws-ebs-csi-driver."
  }
}

variable "ebs_csi_driver" {
  description = "Whether volumes on EBS can be claimed: for models on a PersistentVolumeClaim, and for a Prometheus that keeps its data."
  type        = bool
  default     = false
}

# The nodes of the system pods: Karpenter, CoreDNS, KEDA, Prometheus. GPU nodes are Karpenter's.

variable "system_node_type" {
  description = "Instance type of the on-demand nodes for system pods, x86 with at least 4 GiB."
  type        = string
  default     = "t3.large"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9]+$", var.system_node_type)) && !can(regex("^(g|p|inf|trn)[0-9]", var.system_node_type)) && !can(regex("^[a-z]+[0-9]+[a-z-]*g[a-z-]*\\.", var.system_node_type))
    error_message = "system_node_type must be an x86 instance type without a GPU, such as t3.large: GPU nodes are Karpenter's."
  }
}

variable "system_nodes" {
  description = "How many of them. Karpenter's two replicas want two nodes in two zones."
  type        = number
  default     = 2

  validation {
    condition     = var.system_nodes >= 2 && var.system_nodes <= 6 && floor(var.system_nodes) == var.system_nodes
    error_message = "system_nodes must be a whole number from 2 to 6: Karpenter's replicas keep to different nodes."
  }
}

variable "system_node_disk_gib" {
  description = "Root volume of a system node, GiB."
  type        = number
  default     = 30

  validation {
    condition     = var.system_node_disk_gib >= 20 && var.system_node_disk_gib <= 500
    error_message = "system_node_disk_gib must be from 20 to 500."
  }
}
