{{/* What values must be to each other. Each broken rule ends the installation with a sentence. */}}

{{- define "soloist.gracePeriod" -}}
{{- $stop := (.Files.Get "facts.yaml" | fromYaml).stopSeconds -}}
{{ addf .Values.shutdown.preStopSeconds .Values.settings.propagation_s .Values.settings.grace_s $stop | ceil | int }}
{{- end }}

{{- define "soloist.onSpot" -}}
{{- if or (eq .Values.placement.capacity "spot") (eq .Values.placement.capacity "spot-preferred") -}}true{{- end -}}
{{- end }}

{{- define "soloist.checks" -}}
{{- $s := .Values.security -}}
{{- $grace := include "soloist.gracePeriod" . | int -}}
{{- if and (include "soloist.onSpot" .) (gt $grace 110) -}}
{{- fail (printf "A pod on a spot node has 110 s to leave, and these values come to %d s: lower settings.grace_s, settings.propagation_s or shutdown.preStopSeconds, or set placement.capacity to on-demand." $grace) -}}
{{- end -}}
{{- if and $s.insecure (or $s.tls.secretName $s.apiKeys.existingSecret) -}}
{{- fail "security.insecure means neither TLS nor keys: unset it, or unset security.tls.secretName and security.apiKeys.existingSecret." -}}
{{- end -}}
{{- if not (or $s.insecure $s.tls.secretName $s.apiKeys.existingSecret $s.apiKeys.generate) -}}
{{- fail "Nobody would keep strangers from the server: set security.apiKeys.generate or .existingSecret, or security.tls.secretName, or say security.insecure=true where something else does." -}}
{{- end -}}
{{- if and $s.tls.clientCA.secretName (not $s.tls.secretName) -}}
{{- fail "security.tls.clientCA needs security.tls.secretName: without TLS clients show no certificates." -}}
{{- end -}}
{{- if and $s.tls.clientSecretName (not $s.tls.clientCA.secretName) -}}
{{- fail "security.tls.clientSecretName is shown to a server that asks for certificates: set security.tls.clientCA.secretName too." -}}
{{- end -}}
{{- if and .Values.gateway.enabled $s.tls.clientCA.secretName (not $s.tls.clientSecretName) -}}
{{- fail "security.tls.clientCA asks the gateway for a certificate too, and it has none: set security.tls.clientSecretName." -}}
{{- end -}}
{{- if and .Values.kubernetes.enabled (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "kubernetes.enabled would give its rights to the service account default, which other pods of the namespace have: set serviceAccount.create, or serviceAccount.name." -}}
{{- end -}}
{{- if and (eq .Values.variant "cuda") (lt (int .Values.probes.startup.budgetSeconds) 600) -}}
{{- fail (printf "probes.startup.budgetSeconds is %d: on a GPU loading and capturing may take 600 s and more, and a pod that is killed while it loads never starts." (int .Values.probes.startup.budgetSeconds)) -}}
{{- end -}}
{{- include "soloist.checks.names" . -}}
{{- include "soloist.checks.settings" . -}}
{{- include "soloist.checks.model" . -}}
{{- include "soloist.checks.scaling" . -}}
{{- if .Values.gateway.enabled -}}{{- include "soloist.checks.gateway" . -}}{{- end -}}
{{- if and .Values.route.enabled (not .Values.route.parentRefs) -}}
{{- fail "route.parentRefs is empty: name the gateway that the route belongs to." -}}
{{- end -}}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker.name) -}}
{{- fail "inferencePool.endpointPicker.name is empty: name the Service of the endpoint picker." -}}
{{- end -}}
{{- if and .Values.inferencePool.enabled $s.tls.secretName -}}
{{- fail "inferencePool speaks plain HTTP/2 to its pods and cannot be used with security.tls.secretName." -}}
{{- end -}}
{{- if and (gt (int .Values.placement.onDemandFloor) 0) (eq .Values.placement.capacity "anywhere") -}}
{{- fail "placement.onDemandFloor needs nodes with the label soloist.dev/pool: set placement.capacity to spot-preferred, spot or on-demand." -}}
{{- end -}}
{{- end }}

{{/* The names of a Service, and no label twice. */}}
{{- define "soloist.checks.names" -}}
{{- $name := include "soloist.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "The release would make a Service %s: such a name begins with a letter, and has letters, digits and dashes alone. Choose another name for the release, or set fullnameOverride." $name) -}}
{{- end -}}
{{- $labels := dict "podLabels" .Values.podLabels -}}
{{- range $part := list "podMonitor" "rules" "dashboards" -}}
{{- $_ := set $labels (printf "monitoring.%s.labels" $part) (get $.Values.monitoring $part).labels -}}
{{- end -}}
{{- range $place, $given := $labels -}}
{{- range $label, $_ := $given -}}
{{- if or (hasPrefix "app.kubernetes.io/" $label) (hasPrefix "soloist.dev/" $label) (hasPrefix "helm.sh/" $label) -}}
{{- fail (printf "%s: %s is the chart's own; choose another label." $place $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* 1 to 65535. */}}
{{- define "soloist.portPattern" -}}
([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])
{{- end }}

{{/* What the server would refuse when it starts, said before there is a pod. */}}
{{- define "soloist.checks.settings" -}}
{{- $settings := .Values.settings -}}
{{- if and (ne (toString $settings.max_active_turns) "auto") (gt (int $settings.max_active_turns) (int $settings.slots)) -}}
{{- fail (printf "settings.max_active_turns is %d and settings.slots %d: a turn needs a slot." (int $settings.max_active_turns) (int $settings.slots)) -}}
{{- end -}}
{{- if and (gt (float64 $settings.do_not_disrupt_s) 0.0) (not .Values.kubernetes.enabled) -}}
{{- fail "settings.do_not_disrupt_s needs kubernetes.enabled: it is the cluster's API that holds Karpenter off." -}}
{{- end -}}
{{- if and .Values.kubernetes.admissionPolicy (not .Values.kubernetes.enabled) -}}
{{- fail "kubernetes.admissionPolicy bounds the rights of kubernetes.enabled, which is off: unset it, or enable these." -}}
{{- end -}}
{{- if not (regexMatch (printf "^(off|https?://([^]/?#@:,\"[:space:][]+|\\[[0-9a-fA-F:.]+\\])(:%s)?/?)$" (include "soloist.portPattern" .)) $settings.traces) -}}
{{- fail (printf "settings.traces is %s: it must be http://HOST:PORT or https://HOST:PORT of an OTLP collector, or off." $settings.traces) -}}
{{- end -}}
{{- end }}

{{- define "soloist.checks.model" -}}
{{- $model := .Values.model -}}
{{- $wanted := dict "s3" $model.s3.uri "hub" $model.hub.id "pvc" $model.pvc.claimName "image" $model.image.reference "hostPath" $model.hostPath.path -}}
{{- $name := dict "s3" "s3.uri" "hub" "hub.id" "pvc" "pvc.claimName" "image" "image.reference" "hostPath" "hostPath.path" -}}
{{- if and (ne $model.source "embedded") (not (get $wanted $model.source)) -}}
{{- fail (printf "model.source is %s, and model.%s is empty: say which model." $model.source (get $name $model.source)) -}}
{{- end -}}
{{- range $source, $value := $wanted -}}
{{- if and $value (ne $source $model.source) -}}
{{- fail (printf "model.%s is set, and model.source is %s: set model.source to %s, or unset the other." (get $name $source) $model.source $source) -}}
{{- end -}}
{{- end -}}
{{- if and $model.path (not (has $model.source (list "pvc" "image" "hostPath"))) -}}
{{- fail (printf "model.path is for a model on a volume, and model.source is %s." $model.source) -}}
{{- end -}}
{{- if and (ne $model.cache.type "none") (not (has $model.source (list "s3" "hub"))) -}}
{{- fail (printf "model.cache keeps what s3 and hub bring, and model.source is %s." $model.source) -}}
{{- end -}}
{{- if and (eq $model.source "hub") (eq $model.cache.type "none") -}}
{{- fail "model.source hub needs a place for what is downloaded: set model.cache.type to emptyDir or pvc." -}}
{{- end -}}
{{- if and (eq $model.cache.type "pvc") (not $model.cache.claimName) -}}
{{- fail "model.cache.type is pvc, and model.cache.claimName is empty." -}}
{{- end -}}
{{- end }}

{{- define "soloist.checks.gateway" -}}
{{- $gateway := .Values.gateway -}}
{{- $keyless := include "soloist.gatewayNeedsNoKey" . -}}
{{- $guarded := or $gateway.insecure (and .Values.networkPolicy.enabled .Values.networkPolicy.gatewayClients) -}}
{{- if and $keyless (not $guarded) -}}
{{- fail "Nobody would need a key at the gateway, and everybody may reach it: name its callers in networkPolicy.gatewayClients, let them send keys (gateway.lendKey=false, and keys for the server), or say gateway.insecure=true where something else keeps strangers away." -}}
{{- end -}}
{{- if and (ne $gateway.service.type "ClusterIP") (not $gateway.tlsSecretName) (not $guarded) -}}
{{- fail (printf "gateway.service.type %s opens the gateway beyond the cluster, where keys could be read on their way: set gateway.tlsSecretName, name its callers in networkPolicy.gatewayClients, or say gateway.insecure=true where something before it speaks TLS." $gateway.service.type) -}}
{{- end -}}
{{- if and $keyless (has "*" $gateway.settings.cors_origins) -}}
{{- fail "gateway.settings.cors_origins has *, and nobody needs a key at the gateway: any page that a reader opens could use it. Name the pages." -}}
{{- end -}}
{{- end }}

{{- define "soloist.checks.scaling" -}}
{{- $scaling := .Values.autoscaling -}}
{{- if and (ne $scaling.mode "none") (lt (int $scaling.maxReplicas) (int $scaling.minReplicas)) -}}
{{- fail (printf "autoscaling.maxReplicas is %d and minReplicas %d: the most must not be fewer than the fewest." (int $scaling.maxReplicas) (int $scaling.minReplicas)) -}}
{{- end -}}
{{- if and (eq $scaling.mode "keda") (not (or .Values.monitoring.podMonitor.enabled $scaling.prometheus.scrapedElsewhere)) -}}
{{- fail "autoscaling.mode keda asks Prometheus who waits, and nothing of this chart has the pods scraped: set monitoring.podMonitor.enabled, or say autoscaling.prometheus.scrapedElsewhere=true where something else does." -}}
{{- end -}}
{{- if and $scaling.workHours.enabled (ne $scaling.mode "keda") -}}
{{- fail (printf "autoscaling.workHours needs autoscaling.mode keda, which can end the last pod; it is %s." $scaling.mode) -}}
{{- end -}}
{{- end }}
