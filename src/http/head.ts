/** What the service looks at of a request's header fields; a list holds every line of that name. */
export interface Head {
  readonly hosts: readonly string[]
  readonly authorization: readonly string[]
  readonly contentTypes: readonly string[]
  readonly contentEncodings: readonly string[]
  readonly expectations: readonly string[]
  readonly requestIds: readonly string[]
  /** Undefined without a Content-Length: then there is no body, or a chunked one. Node has checked that it is a number. */
  readonly contentLengthBytes: number | undefined
  readonly chunked: boolean
}

const NONE: readonly string[] = []

/** Reads `rawHeaders`, where names and values alternate: Node's own `headers` would hide a line that stands twice. */
export function readHead(rawHeaders: readonly string[]): Head {
  const head: { -readonly [K in keyof Head]: Head[K] } = {
    hosts: NONE,
    authorization: NONE,
    contentTypes: NONE,
    contentEncodings: NONE,
    expectations: NONE,
    requestIds: NONE,
    contentLengthBytes: undefined,
    chunked: false,
  }
  for (let i = 0; i + 1 < rawHeaders.length; i += 2) {
    const value = rawHeaders[i + 1] ?? ''
    switch (rawHeaders[i]?.toLowerCase()) {
      case 'host':
        head.hosts = [...head.hosts, value]
        break
      case 'authorization':
        head.authorization = [...head.authorization, value]
        break
      case 'content-type':
        head.contentTypes = [...head.contentTypes, value]
        break
      case 'content-encoding':
        head.contentEncodings = [...head.contentEncodings, value]
        break
      case 'expect':
        head.expectations = [...head.expectations, value]
        break
      case 'request-id':
        head.requestIds = [...head.requestIds, value]
        break
      case 'content-length':
        head.contentLengthBytes = Number(value)
        break
      case 'transfer-encoding':
        head.chunked = true
        break
      default:
    }
  }
  return head
}
