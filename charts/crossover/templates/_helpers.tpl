{{- define "crossover.fullname" -}}
{{- if contains "crossover" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-crossover" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "crossover.serviceAccountName" -}}
{{- default (include "crossover.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "crossover.selectorLabels" -}}
app.kubernetes.io/name: crossover
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "crossover.labels" -}}
{{ include "crossover.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "crossover.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end }}
{{- end }}

{{- /* What the operator may do in a namespace it watches. No secrets, no wildcard, no pod deletion. */ -}}
{{- define "crossover.rules" -}}
# its own resources: read, and write nothing but their status
- apiGroups: [crossover.dev]
  resources: [modelautoscalers, calibrations]
  verbs: [list, watch]
- apiGroups: [crossover.dev]
  resources: [modelautoscalers/status, calibrations/status]
  verbs: [patch]
# the fleets' pods: where to read the load; scratch pods of calibrations are created and removed
- apiGroups: [""]
  resources: [pods]
  verbs: [create, delete, list, watch]
# files that a speculation schedule needs in the pods
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, delete, get]
# the scale targets: the template is patched by server-side apply, the replica count through /scale only
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, patch]
- apiGroups: [apps]
  resources: [deployments/scale, statefulsets/scale]
  verbs: [patch]
# which pods a rollout has reached, and what it replaced
- apiGroups: [apps]
  resources: [replicasets, controllerrevisions]
  verbs: [list]
# who else scales the same target
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [list]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [list]
# telling what happened
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- with .Values.extraRules }}
{{ toYaml . }}
{{- end }}
{{- end }}
