interface ServicePort {
  readonly name: string | undefined
  readonly port: number
  readonly protocol: 'TCP' | 'UDP' | 'SCTP'
}

/** What Kubernetes sets in each container for one Service (the kubelet's package envvars). */
export function serviceVariables(
  service: string,
  address: string,
  ports: readonly ServicePort[],
): Record<string, string> {
  const variableName = (name: string): string => name.toUpperCase().replace(/[-.]/g, '_')
  const prefix = variableName(service)
  const host = address.includes(':') ? `[${address}]` : address
  const variables: Record<string, string> = { [`${prefix}_SERVICE_HOST`]: address }
  ports.forEach(({ name, port, protocol }, i) => {
    const scheme = protocol.toLowerCase()
    const url = `${scheme}://${host}:${port}`
    if (i === 0) variables[`${prefix}_SERVICE_PORT`] = String(port)
    if (i === 0) variables[`${prefix}_PORT`] = url
    if (name !== undefined) {
      variables[`${prefix}_SERVICE_PORT_${variableName(name)}`] = String(port)
    }
    const link = `${prefix}_PORT_${port}_${protocol}`
    Object.assign(variables, {
      [link]: url,
      [`${link}_PROTO`]: scheme,
      [`${link}_PORT`]: String(port),
      [`${link}_ADDR`]: address,
    })
  })
  return variables
}
