{{/* Names are fixed: there is one operator a cluster, and its code knows them. Cluster-scoped ones carry the namespace. */}}
{{- define "smw.name" -}}supervisor-middleware{{- end }}

{{- define "smw.clusterName" -}}supervisor-middleware-{{ .Release.Namespace }}{{- end }}

{{- define "smw.selector" -}}
app.kubernetes.io/name: supervisor-middleware
app.kubernetes.io/component: operator
{{- end }}

{{- define "smw.labels" -}}
{{ include "smw.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "smw.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "smw.operatorUser" -}}system:serviceaccount:{{ .Release.Namespace }}:supervisor-middleware{{- end }}
