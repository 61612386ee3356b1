import { reasonOf } from '../../errors.ts'
import { createPrivateKey, X509Certificate } from 'node:crypto'

/** PEM, as etcd's own clients have it. */
export interface EtcdTls {
  readonly ca: Buffer | undefined
  readonly cert: Buffer | undefined
  readonly key: Buffer | undefined
}

export interface TlsProblem {
  readonly member: keyof EtcdTls
  readonly what: string
}

const CERTIFICATES = /-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----.+?-----END \1-----/gs

/**
 * What can never work. Dates are left out: a clock may be wrong while a machine starts, and no
 * restart may fail before etcd itself refuses the certificate. `outOfDate` is for then.
 */
export function tlsProblems({ ca, cert, key }: EtcdTls): readonly TlsProblem[] {
  const problems: TlsProblem[] = []
  const read = <T>(member: keyof EtcdTls, parse: () => T): T | undefined => {
    try {
      return parse()
    } catch (error) {
      const reason = reasonOf(error)
      problems.push({ member, what: `holds no PEM that can be used: ${reason}` })
      return undefined
    }
  }
  const authorities = ca && read('ca', () => certificatesOf(ca))
  if (authorities && !authorities.some(canBeTrusted)) {
    problems.push({ member: 'ca', what: 'holds no certificate of an authority' })
  }
  const [own] = (cert && read('cert', () => certificatesOf(cert))) ?? []
  const ownKey = key && read('key', () => createPrivateKey(key))
  if (own && ownKey && !own.checkPrivateKey(ownKey)) {
    problems.push({ member: 'key', what: 'is not the key of the first certificate' })
  }
  return problems
}

/** Why etcd may refuse the certificate today. */
export function outOfDate({ cert }: EtcdTls, nowMs = Date.now()): string | undefined {
  if (!cert) return undefined
  try {
    const { validFrom, validTo } = new X509Certificate(cert)
    if (nowMs < Date.parse(validFrom)) return `the client certificate is valid from ${validFrom} on`
    return nowMs > Date.parse(validTo) ? `the client certificate expired at ${validTo}` : undefined
  } catch {
    // Where one cannot be read at all, the attempt says so.
    return undefined
  }
}

/** @throws Error where there is none, or one cannot be read. */
function certificatesOf(pem: Buffer): X509Certificate[] {
  const texts = pem.toString('latin1').match(CERTIFICATES)
  if (!texts) throw new Error('there is no certificate in it')
  return texts.map((text) => new X509Certificate(text))
}

/** A self-signed server certificate, as `etcd --auto-tls` makes, is trusted for itself. */
function canBeTrusted(certificate: X509Certificate): boolean {
  return certificate.ca || certificate.checkIssued(certificate)
}
