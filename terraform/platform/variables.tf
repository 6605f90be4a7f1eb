variable "region" {
  description = "AWS region of the cluster."
  type        = string
  default     = "us-east-1"

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region must be an AWS region such as us-east-1."
  }
}

variable "cluster_name" {
  description = "Name of the EKS cluster, as terraform/cluster was given it."
  type        = string
  default     = "cuda-graph-inference"

  validation {
    condition     = can(regex("^[a-zA-Z0-9][a-zA-Z0-9-]{0,37}$", var.cluster_name))
    error_message = "cluster_name must begin with a letter or digit and have at most 38 letters, digits and hyphens."
  }
}

# What the bill is sorted by, on every resource.

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
  description = "Tag model: what the GPUs serve, such as llama-3.1-8b. Also the folder below models/ in the bucket."
  type        = string
  default     = "smollm2-135m-instruct"

  validation {
    condition     = can(regex("^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$", var.model))
    error_message = "model must begin with a letter or digit and have at most 64 letters, digits, dots, underscores and hyphens: it is a folder's name too."
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

# Models and images.

variable "model_cache_days" {
  description = "Days after which files below cache/ in the model bucket are removed: what can be made again, such as converted weights."
  type        = number
  default     = 30

  validation {
    condition     = var.model_cache_days >= 1 && var.model_cache_days <= 3650 && floor(var.model_cache_days) == var.model_cache_days
    error_message = "model_cache_days must be a whole number of days from 1 to 3650."
  }
}

variable "destroy_data" {
  description = "Whether `terraform destroy` takes models and images with it. Without it a bucket or repository that holds something stops the destroy."
  type        = bool
  default     = false
}

variable "image_repository" {
  description = "Name of the ECR repository. Another one where several clusters of a region must not share their images."
  type        = string
  default     = "soloist"

  validation {
    condition     = can(regex("^[a-z0-9]+([._/-][a-z0-9]+)*$", var.image_repository)) && length(var.image_repository) <= 256
    error_message = "image_repository must have lower-case letters and digits, with single . _ / - in between, such as soloist."
  }
}

variable "images_kept" {
  description = "How many tagged images stay; older ones are removed."
  type        = number
  default     = 20

  validation {
    condition     = var.images_kept >= 2 && var.images_kept <= 1000 && floor(var.images_kept) == var.images_kept
    error_message = "images_kept must be a whole number from 2 to 1000: one runs, and one is what you go back to."
  }
}

# The pods.

variable "namespace" {
  description = "Kubernetes namespace of the pods that read models."
  type        = string
  default     = "soloist"

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", var.namespace))
    error_message = "namespace must be a Kubernetes name: at most 63 lower-case letters, digits and hyphens."
  }
}

variable "service_account" {
  description = "Their service account."
  type        = string
  default     = "soloist"

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$", var.service_account))
    error_message = "service_account must be a Kubernetes name: lower-case letters, digits, dots and hyphens."
  }
}

# The bill.

variable "monthly_budget_usd" {
  description = "What a month may cost, US dollars. You are told at 80% of it, and when the forecast passes it. Nothing is stopped by it."
  type        = number

  validation {
    condition     = var.monthly_budget_usd >= 1
    error_message = "monthly_budget_usd must be 1 or more; `soloist cost` counts what to expect."
  }
}

variable "budget_covers" {
  description = "What the budget counts. account: the whole account. tags: what carries this environment's tag, which AWS counts once the tag is activated as a cost allocation tag."
  type        = string
  default     = "account"

  validation {
    condition     = contains(["account", "tags"], var.budget_covers)
    error_message = "budget_covers must be account or tags."
  }
}

variable "alert_emails" {
  description = "Who is told about spending and idle GPUs, besides whoever subscribes to the topic. AWS asks each once to confirm."
  type        = set(string)

  validation {
    condition     = length(var.alert_emails) >= 1 && length(var.alert_emails) <= 10 && alltrue([for email in var.alert_emails : can(regex("^[^@[:space:]]+@[^@[:space:]]+\\.[^@[:space:]]+$", email))])
    error_message = "alert_emails must hold 1 to 10 email addresses: an alert that nobody gets is none."
  }
}

variable "activate_cost_allocation_tags" {
  description = "Activate the tags environment, owner and model for the bill. Only the payer account may, and only a day after something carries them."
  type        = bool
  default     = false
}

variable "cost_anomaly_detection" {
  description = "Have AWS look for spending that is unlike the weeks before. Off only where AWS Cost Explorer is not to be had: in an emulator, or in a member account that may not use it."
  type        = bool
  default     = true
}

variable "anomaly_covers" {
  description = "What our monitor looks at. tags: what carries this environment's tag, which AWS sees once the tag is activated as a cost allocation tag; a member account may make none. services: each service of the account, of which AWS allows one monitor."
  type        = string
  default     = "tags"

  validation {
    condition     = contains(["tags", "services"], var.anomaly_covers)
    error_message = "anomaly_covers must be tags or services."
  }
}

variable "anomaly_monitor_arn" {
  description = "An existing Cost Anomaly Detection monitor to use in place of one of our own, such as the Default-Services-Monitor that AWS makes in new accounts. Empty makes one."
  type        = string
  default     = ""

  validation {
    condition     = var.anomaly_monitor_arn == "" || can(regex("^arn:aws[a-z-]*:ce::[0-9]{12}:anomalymonitor/", var.anomaly_monitor_arn))
    error_message = "anomaly_monitor_arn must be empty or an ARN such as arn:aws:ce::123456789012:anomalymonitor/...; `aws ce get-anomaly-monitors` lists them."
  }
}

variable "anomaly_usd" {
  description = "Least dollars of an anomaly that is told."
  type        = number
  default     = 20

  validation {
    condition     = var.anomaly_usd >= 1
    error_message = "anomaly_usd must be 1 or more."
  }
}

# GPUs that nobody uses.

variable "gpu_metrics" {
  description = "Install the CloudWatch agent as an EKS add-on. It sends what GPUs do, and is billed by observation; without it there is neither the alarm of idle GPUs nor their part of the dashboard. The cluster must exist."
  type        = bool
  default     = true
}

variable "gpu_metrics_addon_version" {
  description = "Version of the add-on amazon-cloudwatch-observability to pin. Empty takes EKS's default for the Kubernetes version."
  type        = string
  default     = ""
}

variable "gpu_metrics_days" {
  description = "Days that CloudWatch keeps the agent's records. The metrics that it makes of them stay for 15 months all the same."
  type        = number
  default     = 3

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365], var.gpu_metrics_days)
    error_message = "gpu_metrics_days must be a number of days that CloudWatch knows: 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180 or 365."
  }
}

variable "idle_gpu_minutes" {
  description = "Minutes without any work on any GPU after which the alarm rings. It does not ring while there is no GPU node."
  type        = number
  default     = 120

  validation {
    condition     = contains([30, 60, 90, 120, 150, 180], var.idle_gpu_minutes)
    error_message = "idle_gpu_minutes must be 30, 60, 90, 120, 150 or 180: what the alarm may look back on."
  }
}

variable "gpu_pools" {
  description = "Names of the NodePools that night_stop may terminate nodes of, as helm/soloist-nodes has them: pools.*.name, and gpu-spot-more where pools.spot.moreInstanceTypes is set."
  type        = list(string)
  default     = ["gpu-spot", "gpu-spot-more", "gpu-on-demand"]

  validation {
    condition     = length(var.gpu_pools) >= 1 && alltrue([for name in var.gpu_pools : can(regex("^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$", name))])
    error_message = "gpu_pools must hold names of NodePools, such as gpu-spot: lower-case letters, digits, dots and hyphens."
  }
}

variable "night_stop" {
  description = "Terminate the GPU nodes that are left when working hours end. The chart's work hours (autoscaling.workHours) take the pods, and Karpenter the empty nodes; this is for a node that something keeps."
  type = object({
    enabled  = optional(bool, false)
    timezone = optional(string, "Etc/UTC")
    schedule = optional(string, "30 19 ? * MON-FRI *") # half an hour after the chart's workHours.end
  })
  default = {}

  validation {
    condition     = can(regex("^([A-Za-z_]+(/[A-Za-z0-9_+-]+){0,2})$", var.night_stop.timezone))
    error_message = "night_stop.timezone must be an IANA time zone such as Europe/Berlin."
  }

  validation {
    condition     = length(split(" ", var.night_stop.schedule)) == 6
    error_message = "night_stop.schedule must have the six fields of an EventBridge cron: minutes, hours, day of month, month, day of week, year, such as 30 19 ? * MON-FRI *."
  }
}
