/** Checks the certificates for a connection to etcd. */
import { createPrivateKey, X509Certificate } from 'node:crypto'
import { reasonOf } from '../../errors.ts'

/** PEM, as etcd's own clients take it. */
export interface EtcdTls {
  readonly ca: Buffer | undefined
  readonly cert: Buffer | undefined
  readonly key: Buffer | undefined
}

type TlsProblem = { readonly member: keyof EtcdTls; readonly what: string }

const CERTIFICATES = /-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----.+?-----END \1-----/gs

/**
 * What can never work. Dates are left to etcd and to `outOfDate`: the clock may be wrong while a
 * machine starts.
 */
export function tlsProblems({ ca, cert, key }: EtcdTls): readonly TlsProblem[] {
  const problems: TlsProblem[] = []
  const read = <T>(member: keyof EtcdTls, pem: Buffer | undefined, parse: (pem: Buffer) => T) => {
    try {
      return pem && parse(pem)
    } catch (error) {
      problems.push({ member, what: `holds no PEM that can be used: ${reasonOf(error)}` })
      return undefined
    }
  }
  const authorities = read('ca', ca, certificatesOf)
  if (authorities && !authorities.some(isTrustable))
    problems.push({ member: 'ca', what: 'holds no certificate of an authority' })
  const own = read('cert', cert, certificatesOf)?.[0]
  const ownKey = read('key', key, createPrivateKey)
  if (own && ownKey && !own.checkPrivateKey(ownKey))
    problems.push({ member: 'key', what: 'is not the key of the first certificate' })
  return problems
}

/** Why etcd may refuse the client certificate today. */
export function outOfDate({ cert }: EtcdTls, nowMs = Date.now()): string | undefined {
  if (!cert) return undefined
  try {
    const { validFrom, validTo } = new X509Certificate(cert)
    if (nowMs < Date.parse(validFrom)) return `the client certificate is valid from ${validFrom} on`
    return nowMs > Date.parse(validTo) ? `the client certificate expired at ${validTo}` : undefined
  } catch {
    // The attempt to use it names the reason.
    return undefined
  }
}

/** @throws Error if there is none, or one cannot be read. */
function certificatesOf(pem: Buffer): X509Certificate[] {
  const texts = pem.toString('latin1').match(CERTIFICATES)
  if (!texts) throw new Error('there is no certificate in it')
  return texts.map((text) => new X509Certificate(text))
}

/** Also a self-signed server certificate, which `etcd --auto-tls` makes. */
function isTrustable(certificate: X509Certificate): boolean {
  return certificate.ca || certificate.checkIssued(certificate)
}
